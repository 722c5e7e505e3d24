"""A process that runs Intel's NPU compiler, which may crash, hang or fill memory."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_command.interrupt import done_at_interrupt
from npu_compiler.errors import TargetError

__all__ = ["Answer", "CompilerProcess", "Limits"]

_POLL_S = 0.25
_START_S = 120.0  # the first start of Wine creates its folder
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_AT_LIMIT = ", and was ended"
_READY_FIELDS = 4
_STALL_S = 30.0
_STALLED = f"it used no processor time for {_STALL_S:.0f} s"
SCHEDULE = "compileTimeScheduleTrace.json"


@dataclass(frozen=True)
class Limits:
    """Bounds of one request: seconds until the process is killed, and its resident memory.

    By default three quarters of all memory.
    """

    duration_s: float = 900.0
    memory_bytes: int = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES * 3 // 4


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    code: int | None  # the compiler's result; 0 is success; None if its process ended
    ended: str  # the end of the process; "" if it is running
    # Whether it was ended at a limit, or from outside, such as by Linux when memory is exhausted.
    is_limited: bool
    log: str  # the compiler's output
    blob: Path  # the file, if the code is 0
    schedule: Path | None  # Chrome trace of the engines; None if the compiler wrote none
    duration_s: float  # seconds from request to answer

    @property
    def is_deadlocked(self) -> bool:
        """Whether the process was ended because it stalled, which may not happen again."""
        return self.ended.startswith(_STALLED)


class CompilerProcess:
    """A process with one version of the compiler, for many requests, one at a time."""

    def __init__(
        self,
        command: Sequence[str],
        library: str,
        environment: Mapping[str, str],
        *,
        windows_paths: bool,
    ) -> None:
        """Starts a client (see vcl_client.c) and reads the compiler's version; [target-compiler].

        With `windows_paths` the client reads paths as Windows does, below Z:.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="npu-target-")
        self.folder = Path(self._folder.name)
        self._windows_paths = windows_paths
        self._printed = self.folder / "printed.txt"
        with self._printed.open("wb") as printed:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                env={**os.environ, **environment},
                cwd=self.folder,
                start_new_session=True,
            )
        # It is in a separate session, which Ctrl-C does not reach.
        self._at_interrupt = contextlib.ExitStack()
        self._at_interrupt.enter_context(done_at_interrupt(self._end))
        line, ended = self._ask([library], Limits(duration_s=_START_S))
        if ended or line[0] != "ready" or len(line) != _READY_FIELDS:
            last = self._printed.read_text(errors="replace").strip().rpartition("\n")[2][-300:]
            said = " ".join(filter(None, (ended or " ".join(line[1:2]), last)))
            self.close()
            raise TargetError(
                f"NPU compiler: {library} must start, got: {said.rstrip('.')}. Run "
                "`npu-compiler target list`, and install another version if this one is damaged.",
                code="target-compiler",
            )
        self.version, self.model_format, self.opset = line[1], line[2], int(line[3])

    def compile(self, ir: Path, flags: str, limits: Limits) -> Answer:
        """Compiles one IR; the answer's files are in this process's folder until the next call.

        Raises [target-cache] if the request cannot be read, or the blob cannot be written.
        """
        blob, log, schedule = (self.folder / name for name in ("blob", "log.txt", SCHEDULE))
        for file in (blob, log, schedule):
            file.unlink(missing_ok=True)
        given = self.folder / "flags.txt"
        given.write_bytes(flags.encode() + b"\0")
        begin = self._printed.stat().st_size
        start_s = time.monotonic()
        line, ended = self._ask([self._path(file) for file in (ir, given, blob, log)], limits)
        duration_s = time.monotonic() - start_s
        with self._printed.open("rb") as printed:
            printed.seek(begin)
            text = printed.read().decode(errors="replace")
        if log.exists():
            text += log.read_text(errors="replace")
        if line[:1] == ["error"]:
            raise TargetError(
                f"NPU compiler: the client must read its request and write the blob, got: "
                f"{line[1]}. Make room in {str(self.folder)!r}, or set TMPDIR.",
                code="target-cache",
            )
        if not ended and not (line[0] == "done" and _is_hexadecimal(line[1:2])):
            self.kill()
            ended = f"it answered {' '.join(line)!r}"
        return Answer(
            code=None if ended else int(line[1], 16),
            ended=ended,
            is_limited=ended.endswith((_AT_LIMIT, signal.SIGKILL.name)),
            log=text,
            blob=blob,
            schedule=schedule if schedule.exists() else None,
            duration_s=duration_s,
        )

    @property
    def is_running(self) -> bool:
        """Whether it can take another request."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the process and removes its folder."""
        self._at_interrupt.close()
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._folder.cleanup()

    def _ask(self, parts: Sequence[str], limits: Limits) -> tuple[list[str], str]:
        """Returns the answer's fields, or the end of the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        until_s = time.monotonic() + limits.duration_s
        pending = b""
        try:
            self._process.stdin.write(os.fsencode("\t".join(parts)) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return [], self._ending()
        out = self._process.stdout.fileno()
        ticks, worked_s = 0, time.monotonic()
        while b"\n" not in pending:
            try:
                left_s = max(until_s - time.monotonic(), 0.0)
                ready, _, _ = select.select([out], [], [], min(_POLL_S, left_s))
            except KeyboardInterrupt:
                self.kill()
                raise
            if ready:
                part = os.read(out, 1 << 16)
                if not part:
                    return [], self._ending()
                pending += part
                continue
            now_s, former = time.monotonic(), ticks
            ticks = _processor_ticks(self._process.pid)
            worked_s = worked_s if ticks == former else now_s
            if now_s >= until_s:
                self.kill()
                return [], f"it did not answer within {limits.duration_s:.0f} s{_AT_LIMIT}"
            if now_s - worked_s > _STALL_S:
                self.kill()
                return [], f"{_STALLED}{_AT_LIMIT}"
            if _resident_bytes(self._process.pid) > limits.memory_bytes:
                self.kill()
                return [], (
                    f"it needed more than {limits.memory_bytes / 1e9:.1f} GB of memory{_AT_LIMIT}"
                )
        return pending.decode(errors="replace").rstrip("\r\n").split("\t"), ""

    def _ending(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"its process ended with exit code {code}"
        return f"its process ended with {signal.Signals(-code).name}"

    def _end(self) -> None:
        self.kill()
        self._folder.cleanup()

    def kill(self) -> None:
        """Kills the process, from any thread."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _path(self, path: Path) -> str:
        return f"Z:{path}".replace("/", "\\") if self._windows_paths else str(path)


def _is_hexadecimal(fields: Sequence[str]) -> bool:
    return bool(fields) and bool(re.fullmatch("[0-9a-f]+", fields[0]))


def _processor_ticks(pid: int) -> int:
    """Returns the processor time of all threads of a process, in clock ticks."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return 0


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
