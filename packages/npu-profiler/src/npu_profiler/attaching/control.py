"""The meeting place of `npu-profiler attach` and a running job: files in a directory of the user's.

A job that waits has a file PID.json; a request is PID.request, the answer PID.state.
"""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from npu_command.whole_files import write_json
from npu_profiler.errors import TraceError

__all__ = ["Mailbox", "control_directory"]


def control_directory() -> Path:
    """The directory, made if it is not there; nobody else may write to it.

    Raises:
        TraceError: [attach-directory] It belongs to somebody else.
    """
    path = Path(tempfile.gettempdir()) / f"npu-profiler-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or not path.is_dir():
        raise TraceError(
            f"attach: {path} must be your own directory, which nobody else may write to; its owner "
            f"is user {status.st_uid}, its mode {status.st_mode & 0o777:o}. Remove it, or set "
            "TMPDIR for the job and for this command.",
            code="attach-directory",
        )
    return path


class Mailbox:
    """The files of one job.

    Args:
        directory: from `control_directory`.
        pid: the job's.
    """

    def __init__(self, directory: Path, pid: int) -> None:
        self._base = directory / str(pid)

    def announce(self) -> None:
        """Says that the job waits."""
        self._put(".json", {"pid": os.getpid()})

    def is_announced(self) -> bool:
        """Whether a job of this id said that it waits, and lives."""
        if not self._path(".json").exists():
            return False
        try:
            os.kill(int(self._base.name), 0)
        except ProcessLookupError:
            self.clear()
            return False
        return True

    def clear(self) -> None:
        """Removes all files of the job."""
        for suffix in (".json", ".request", ".state"):
            self._path(suffix).unlink(missing_ok=True)

    def ask(self, request: dict[str, Any]) -> None:
        """Asks the job for something; what was answered before is forgotten."""
        self._path(".state").unlink(missing_ok=True)
        self._put(".request", request)

    def take_request(self) -> dict[str, Any] | None:
        """What somebody asks for, once."""
        request = self._get(".request")
        if request is not None:
            self._path(".request").unlink(missing_ok=True)
        return request

    def answer(self, state: dict[str, Any]) -> None:
        """Tells how it stands."""
        self._put(".state", state)

    def state(self) -> dict[str, Any] | None:
        """How it stands, as far as the job told."""
        return self._get(".state")

    def _path(self, suffix: str) -> Path:
        return self._base.with_name(self._base.name + suffix)

    def _put(self, suffix: str, content: dict[str, Any]) -> None:
        write_json(self._path(suffix), content)

    def _get(self, suffix: str) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(self._path(suffix).read_text())
            if isinstance(content, dict):
                return content
        return None
