"""Records aten ops with torch's own profiler: all threads, backward included.

A program may use torch's profiler itself. Two at a time end in a segmentation fault (torch 2.13),
so ours steps aside for as long as the program's runs, and there are as many windows. What was
exported is read in `kineto_file.py`.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_profiler.clock import ClockMark
from npu_profiler.config import quiet_kineto
from npu_profiler.kineto_file import KinetoFile, TorchSlice, read_kineto_file

if TYPE_CHECKING:
    import torch.profiler

__all__ = ["OpWindow", "TorchOps"]

MARK_PREFIX = "npu_profiler::clock:"
MARKS_PER_EDGE = 16


@dataclass(frozen=True, slots=True)
class OpWindow:
    """One uninterrupted recording of ops.

    Attributes:
        start_ns: System clock when it began.
        end_ns: System clock when it ended.
        recorded: What torch recorded, without our clock marks.
        marks: The clock marks at both edges.
    """

    start_ns: int
    end_ns: int
    recorded: KinetoFile
    marks: list[ClockMark]


@dataclass(frozen=True, slots=True)
class _OpenWindow:
    profile: "torch.profiler.profile"
    start_ns: int
    brackets: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Export:
    path: Path
    start_ns: int
    end_ns: int
    brackets: dict[str, tuple[int, int]]


class TorchOps:
    """Starts and stops torch's profiler. To be used after torch has been imported.

    Args:
        scratch: Beginning of the names of the files that hold an export until it is read.
        stacks: Record Python calls as well (several times the cost).

    Attributes:
        problems: Why ops are missing from the recording, one sentence each.
    """

    def __init__(self, scratch: Path, *, stacks: bool) -> None:
        self._scratch = scratch
        self._stacks = stacks
        self._open: _OpenWindow | None = None
        self._exports: list[_Export] = []
        self._restore: Callable[[], None] | None = None
        self.problems: list[str] = []

    def start(self) -> None:
        """Begins to record.

        Raises:
            RuntimeError: Torch cannot profile now, for example because somebody else does.
        """
        self._open_window()
        self._restore = _step_aside(self._owns, self._pause, self._resume)

    def stop(self) -> None:
        """Ends the recording. Nothing happens when none runs.

        Raises:
            RuntimeError, OSError: Torch could not export it.
        """
        if self._restore is not None:
            self._restore()
            self._restore = None
        self._close_window()

    def read(self) -> list[OpWindow]:
        """Reads what was recorded, and removes torch's files.

        Raises:
            OSError, ValueError: An export cannot be read.
        """
        windows = []
        for export in self._exports:
            try:
                recorded = read_kineto_file(export.path)
            finally:
                export.path.unlink(missing_ok=True)
            marks, slices = _take_marks(export.brackets, recorded.slices)
            recorded = dataclasses.replace(recorded, slices=slices)
            windows.append(OpWindow(export.start_ns, export.end_ns, recorded, marks))
        self._exports.clear()
        return windows

    def _owns(self, profile: object) -> bool:
        return self._open is not None and profile is self._open.profile.profiler

    def _open_window(self) -> None:
        import torch.profiler
        from torch._C._profiler import _ExperimentalConfig

        profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            with_stack=self._stacks,
            # trace_only builds no Python lists, which we do not read: half the time at the end.
            experimental_config=_ExperimentalConfig(
                profile_all_threads=True, trace_only=not self._stacks
            ),
        )
        self._open = _OpenWindow(profile, time.time_ns())
        with quiet_kineto():
            profile.prepare_trace()
        profile.start_trace()
        _set_marks(self._open.brackets, "start")

    def _close_window(self) -> None:
        window = self._open
        if window is None:
            return
        _set_marks(window.brackets, "end")
        end_ns = time.time_ns()
        window.profile.stop_trace()
        self._open = None
        path = self._scratch.with_name(f"{self._scratch.name}{len(self._exports)}.json")
        window.profile.export_chrome_trace(str(path))
        self._exports.append(_Export(path, window.start_ns, end_ns, window.brackets))

    def _pause(self) -> None:
        self._attempt(self._close_window)

    def _resume(self) -> None:
        self._attempt(self._open_window)

    def _attempt(self, action: Callable[[], None]) -> None:
        # Called within the program's own profiling: whatever goes wrong here must not reach it.
        try:
            action()
        except (RuntimeError, OSError) as error:
            self.problems.append(f"ops around the program's own profiler are missing: {error}")


def _set_marks(brackets: dict[str, tuple[int, int]], edge: str) -> None:
    # The C object itself: entering it takes 0.3 us, torch.profiler.record_function 3 us (2026-11).
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


def _step_aside(
    is_ours: Callable[[object], bool], pause: Callable[[], None], resume: Callable[[], None]
) -> Callable[[], None]:
    """Makes every other profiler pause ours while it runs; returns what undoes that."""
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
