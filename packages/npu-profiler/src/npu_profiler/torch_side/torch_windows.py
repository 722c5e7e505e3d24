"""Records ops together with Python calls by torch's profiler, the only one that supports both.

Torch keeps its recording in memory until the end.

There are several windows if the program uses torch's profiler itself: two at a time cause a
segmentation fault (torch 2.13), so ours pauses. Otherwise a window is never closed to open another
while the program runs, because running ops would write to the closed window's freed memory
(2026-11).
"""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_command.host_memory import available_bytes
from npu_profiler.config import quiet_kineto
from npu_profiler.signals import signals_blocked
from npu_profiler.torch_side.kineto_file import ClockMark, KinetoFile, TorchSlice, read_kineto_file

if TYPE_CHECKING:
    import torch.profiler

__all__ = ["OpWindow", "TorchWindows", "step_aside"]


def step_aside(
    is_ours: Callable[[object], bool], pause: Callable[[], None], resume: Callable[[], None]
) -> Callable[[], None]:
    """Makes other uses of torch's profiler pause ours; returns a function that undoes this."""
    from torch.autograd import profiler

    target: Any = profiler.profile
    prepare, leave = target._prepare_trace, target.__exit__
    others: set[int] = set()

    @functools.wraps(prepare)
    def prepare_trace(self: Any) -> None:
        if self.enabled and not is_ours(self):
            pause()
            others.add(id(self))
        prepare(self)

    @functools.wraps(leave)
    def exit_trace(self: Any, *exc_info: Any) -> Any:
        try:
            return leave(self, *exc_info)
        finally:
            if id(self) in others:
                others.discard(id(self))
                if not others:
                    resume()

    def restore() -> None:
        target._prepare_trace = prepare
        target.__exit__ = leave

    target._prepare_trace = prepare_trace
    target.__exit__ = exit_trace
    return restore


MARK_PREFIX = "npu_profiler::clock:"
MARKS_PER_EDGE = 16

# Torch keeps 275 bytes per op and temporarily needs 1,000 more per op at the end (2026-11), so
# recording stops while enough memory is left for the end.
RESERVE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class OpWindow:
    """One uninterrupted recording of ops."""

    start_ns: int  # system clock at its start
    end_ns: int  # system clock at its end
    end_reason: str  # reason for an early end; empty otherwise
    recorded: KinetoFile  # torch's recording, without our clock marks
    marks: list[ClockMark]  # the clock marks at both ends


@dataclass(frozen=True, slots=True)
class _OpenWindow:
    profile: "torch.profiler.profile"
    start_ns: int
    brackets: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _ClosedWindow:
    window: _OpenWindow
    end_ns: int
    end_reason: str


@dataclass(frozen=True, slots=True)
class _Export:
    path: Path
    start_ns: int
    end_ns: int
    end_reason: str
    brackets: dict[str, tuple[int, int]]


class TorchWindows:
    """Starts and stops torch's profiler. Use it after torch was imported.

    Args:
        scratch: path prefix of temporary export files.

    Attributes:
        problems: reasons for missing ops, one sentence each.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._open: _OpenWindow | None = None
        self._exports: list[_Export] = []
        self._restore: Callable[[], None] | None = None
        self._is_full = False
        # Re-entrant: a signal may end the recording while its own thread opens a window.
        self._lock = threading.RLock()
        self.problems: list[str] = []

    def start(self) -> None:
        """Starts recording; RuntimeError if torch cannot, as when another profiler is active."""
        self._open_window()
        self._restore = step_aside(self._owns, self._pause, self._resume)

    def stop(self) -> None:
        """Stops recording, if active; RuntimeError or OSError if torch cannot export it."""
        if self._restore is not None:
            self._restore()
            self._restore = None
        self._export(self._close_window(""))

    def keep_bounded(self) -> None:
        """Stops recording if memory runs short. Call it periodically."""
        with self._lock:
            if self._open is None or available_bytes() >= RESERVE_BYTES:
                return
            self._is_full = True
            self._attempt(lambda: self._export(self._close_window("memory runs short")))
            self.problems.append(
                "aten ops after memory ran short; npu_profiler.trace records a part of a program"
            )

    def read(self) -> list[OpWindow]:
        """Reads the recording and removes torch's files; OSError or ValueError on failure."""
        windows = []
        for export in self._exports:
            try:
                recorded = read_kineto_file(export.path)
            finally:
                export.path.unlink(missing_ok=True)
            marks, slices = _take_marks(export.brackets, recorded.slices)
            recorded = dataclasses.replace(recorded, slices=slices)
            windows.append(
                OpWindow(export.start_ns, export.end_ns, export.end_reason, recorded, marks)
            )
        self._exports.clear()
        return windows

    def _owns(self, profile: object) -> bool:
        return self._open is not None and profile is self._open.profile.profiler

    def _open_window(self) -> None:
        with self._lock:
            if self._open is not None or self._is_full:
                return
            self._open = _OpenWindow(self._new_profile(), time.time_ns())
            try:
                with quiet_kineto(), signals_blocked():
                    self._open.profile.prepare_trace()
                    self._open.profile.start_trace()
            except RuntimeError:
                self._open = None
                raise
            _set_marks(self._open.brackets, "start")

    def _new_profile(self) -> "torch.profiler.profile":
        import torch.profiler
        from torch._C._profiler import _ExperimentalConfig

        return torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            with_stack=True,
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        )

    def _close_window(self, end_reason: str) -> _ClosedWindow | None:
        with self._lock:
            window, self._open = self._open, None
            if window is None:
                return None
            _set_marks(window.brackets, "end")
            end_ns = time.time_ns()
            window.profile.stop_trace()
            return _ClosedWindow(window, end_ns, end_reason)

    def _export(self, closed: _ClosedWindow | None) -> None:
        if closed is None:
            return
        window = closed.window
        path = self._scratch.with_name(f"{self._scratch.name}{len(self._exports)}.json")
        window.profile.export_chrome_trace(str(path))
        self._exports.append(
            _Export(
                path,
                window.start_ns,
                closed.end_ns,
                closed.end_reason,
                window.brackets,
            )
        )

    def _pause(self) -> None:
        reason = "the program's torch.profiler is running"
        self._attempt(lambda: self._export(self._close_window(reason)))

    def _resume(self) -> None:
        self._attempt(self._open_window)

    def _attempt(self, action: Callable[[], None]) -> None:
        # Runs within the program's profiling, or on our thread: an error must not reach the
        # program.
        try:
            action()
        except (RuntimeError, OSError) as error:
            self.problems.append(f"aten ops of one window: {error}")


def _set_marks(brackets: dict[str, tuple[int, int]], edge: str) -> None:
    # The C object: entering it takes 0.3 us, torch.profiler.record_function 3 us (2026-11).
    from torch._C._profiler import _RecordFunctionFast

    for number in range(MARKS_PER_EDGE):
        name = f"{MARK_PREFIX}{edge}{number}"
        mark = _RecordFunctionFast(name)
        before_ns = time.time_ns()
        mark.__enter__()
        after_ns = time.time_ns()
        mark.__exit__(None, None, None)
        brackets[name] = (before_ns, after_ns)


def _take_marks(
    brackets: dict[str, tuple[int, int]], slices: list[TorchSlice]
) -> tuple[list[ClockMark], list[TorchSlice]]:
    marks = [
        ClockMark(*brackets[item.name], item.start_ns) for item in slices if item.name in brackets
    ]
    return marks, [item for item in slices if not item.name.startswith(MARK_PREFIX)]
