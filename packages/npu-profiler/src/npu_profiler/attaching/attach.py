"""The command's side of `npu-profiler attach`, and the files shared with a running job.

The files are in a directory owned by the user. A waiting job has a file PID.json; a request is
PID.request, the answer PID.state. The job's side is npu_profiler.attaching.listener.
"""

import contextlib
import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from npu_command.whole_files import write_json
from npu_profiler.errors import TraceError
from npu_profiler.output_file import check_writable
from npu_profiler.recording.recorder import TraceOptions

__all__ = ["Mailbox", "attach", "control_directory", "detach"]


def control_directory() -> Path:
    """Returns the directory, created if missing; [attach-directory] if others may write it."""
    path = Path(tempfile.gettempdir()) / f"npu-profiler-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or not path.is_dir():
        raise TraceError(
            f"attach: {path} must be your directory, writable only by you, got one whose owner "
            f"is user {status.st_uid}, its mode {status.st_mode & 0o777:o}. Remove it, or set "
            "TMPDIR for the job and for this command.",
            code="attach-directory",
        )
    return path


class Mailbox:
    """The files of a job, by its process id, in the directory of `control_directory`."""

    def __init__(self, directory: Path, pid: int) -> None:
        self._base = directory / str(pid)

    def announce(self) -> None:
        """Announces that the job is waiting."""
        self._put(".json", {"pid": os.getpid()})

    def is_announced(self) -> bool:
        """Whether a job of this id is waiting and alive."""
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
        """Sends a request to the job; discards earlier answers."""
        self._path(".state").unlink(missing_ok=True)
        self._put(".request", request)

    def take_request(self) -> dict[str, Any] | None:
        """Returns a request, once."""
        request = self._get(".request")
        if request is not None:
            self._path(".request").unlink(missing_ok=True)
        return request

    def answer(self, state: dict[str, Any]) -> None:
        """Writes the state."""
        self._put(".state", state)

    def state(self) -> dict[str, Any] | None:
        """The state as last reported by the job."""
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


_ANSWER_S = 30.0
_LOOK_S = 0.1


def attach(
    pid: int, output: Path, *, seconds: float | None, options: TraceOptions
) -> list[str] | None:
    """Makes the job `pid` record itself.

    Args:
        pid: a job that was started with NPU_ATTACH=1.
        output: the trace; the job writes it.
        seconds: duration; None records until `detach` and returns immediately.
        options: the recording options.

    Returns:
        The lines of the summary; None if the call did not wait.

    Raises:
        TraceError: [attach-absent] no such job is waiting; [attach-refused] it does not record, or
            ended before; [output-unwritable]; [attach-directory].
    """
    mailbox = _mailbox(pid)
    output = output.absolute()
    check_writable(output, "trace output")
    mailbox.ask({"output": str(output), "seconds": seconds, "options": dataclasses.asdict(options)})
    _wait(pid, mailbox, "recording", within_s=_ANSWER_S)
    if seconds is None:
        return None
    return list(_wait(pid, mailbox, "done", within_s=seconds + _ANSWER_S)["lines"])


def detach(pid: int) -> list[str]:
    """Ends a recording of `attach` without a duration; returns the summary. Raises as `attach`."""
    mailbox = _mailbox(pid)
    mailbox.ask({"stop": True})
    return list(_wait(pid, mailbox, "done", within_s=_ANSWER_S)["lines"])


def _mailbox(pid: int) -> Mailbox:
    mailbox = Mailbox(control_directory(), pid)
    if not mailbox.is_announced():
        raise TraceError(
            f"attach: process {pid} must be waiting for a recording, got one that is not. Start "
            "the job with NPU_ATTACH=1 in its environment, as the same user and with the same "
            "TMPDIR.",
            code="attach-absent",
        )
    return mailbox


def _wait(pid: int, mailbox: Mailbox, key: str, *, within_s: float) -> dict[str, Any]:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        state = mailbox.state() or {}
        if "error" in state:
            raise _refused(pid, state["error"])
        if key in state or "done" in state:
            return state
        if not _is_alive(pid):
            raise _refused(pid, "it ended meanwhile; the trace is complete up to then")
        time.sleep(_LOOK_S)
    raise _refused(pid, f"it did not answer within {within_s:.0f} s")


def _refused(pid: int, why: str) -> TraceError:
    return TraceError(
        f"attach: process {pid} must record itself, got an error: {why}", code="attach-refused"
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
