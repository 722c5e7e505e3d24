"""One recording from its start to its file: who listens when, and what is done with it at the end.

The listeners are `torch_ops.py` and `device_events.py`; the picture is made in `assemble.py` and
written in `chrome.py`. Running a program under a recording is in `cli.py`.
"""

import contextlib
import gc
import importlib.metadata
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_profiler.assemble import Recorded, assemble
from npu_profiler.chrome import check_writable, write_chrome_trace
from npu_profiler.device_events import DeviceEvents
from npu_profiler.errors import TraceError
from npu_profiler.import_hook import ImportHook
from npu_profiler.signal_mask import signals_blocked
from npu_profiler.summary import Summary, summarize
from npu_profiler.thread_names import ThreadNames
from npu_profiler.torch_ops import OpWindow, TorchOps

__all__ = ["Recording", "TraceOptions", "trace"]

# Ops come at a million a second at most, device events at 400,000 (2026-11).
UPKEEP_INTERVAL_S = 0.5

_current: "Recording | None" = None
_current_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How to record.

    Attributes:
        stacks: Record Python calls as well; several times the cost.
        program: What the process is called in the trace; the script's name if empty.
    """

    stacks: bool = False
    program: str = ""


@contextlib.contextmanager
def trace(path: str | os.PathLike[str], *, stacks: bool = False) -> Iterator["Recording"]:
    """Records what happens inside and writes it to `path` as a Chrome trace.

    The file is written at the end, also when the body raises; its error goes on unchanged.

        with npu_profiler.trace("step.json"):
            loss = model(x).sum()
            loss.backward()

    Args:
        path: The file, replaced if there; compressed when it ends in .gz.
        stacks: Record Python calls as well.

    Raises:
        TraceError: [output-unwritable] for a path that takes no file, [trace-active] when another
            recording runs.
        OSError: The file could not be written at the end.
    """
    recording = Recording(Path(path), TraceOptions(stacks=stacks))
    recording.start()
    try:
        yield recording
    finally:
        recording.finish()


class Recording:
    """A recording of this process: all threads, ops from the first import of torch on.

    Args:
        path: Where the trace goes.
        options: How to record.

    Attributes:
        path: Where the trace goes.
        summary: What was recorded; None until it is finished.
    """

    def __init__(self, path: Path, options: TraceOptions) -> None:
        self.path = path.absolute()  # the program may change the directory
        self.options = options
        self.summary: Summary | None = None
        self._pid = os.getpid()
        self._start_ns = 0
        self._problems: list[str] = []
        self._ops: TorchOps | None = None
        self._device = DeviceEvents()
        self._thread_names = ThreadNames()
        self._stopping = threading.Event()
        self._upkeep = threading.Thread(target=self._keep_bounded, name="npu-profiler", daemon=True)
        self._hook = ImportHook({"npu_runtime": self._start_device, "torch": self._start_ops})

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that records, not a fork of it."""
        return os.getpid() == self._pid

    def start(self) -> None:
        """Begins to record; what is not imported yet is listened to from its import on.

        Raises:
            TraceError: [output-unwritable], [trace-active].
        """
        global _current
        check_writable(self.path)
        with _current_lock:
            if _current is not None and _current.is_ours:
                raise TraceError(
                    f"trace: one recording at a time; {_current.path.name} is still being "
                    "recorded. Finish it first",
                    "trace-active",
                )
            _current = self
        self._start_ns = time.time_ns()
        self._thread_names.start()
        with signals_blocked():
            self._upkeep.start()
        self._hook.install()

    def finish(self) -> None:
        """Ends the recording and writes the file. A second call, or one in a fork, does nothing.

        Raises:
            OSError: The file cannot be written.
        """
        global _current
        if _current is not self or not self.is_ours:
            return
        _current = None
        with _collector_paused():
            self._finish()

    def _finish(self) -> None:
        self._stopping.set()
        self._hook.remove()
        self._device.stop()
        windows = self._stop_ops()
        names = self._thread_names.stop()
        if self._device.dropped:
            self._problems.append(f"{self._device.dropped:,} device events past the limit")
        timeline = assemble(
            Recorded(
                program=self.options.program or Path(sys.argv[0]).name or "-",
                pid=self._pid,
                start_ns=self._start_ns,
                end_ns=time.time_ns(),
                windows=windows,
                events=self._device.events,
                thread_names=names,
                own_thread_id=self._upkeep.native_id,
                facts={"problems": self._problems, **_versions()},
            )
        )
        self.summary = summarize(timeline)
        write_chrome_trace(timeline, self.path)

    def _keep_bounded(self) -> None:
        while not self._stopping.wait(UPKEEP_INTERVAL_S):
            self._device.fetch()
            if self._ops is not None:
                self._ops.keep_bounded()

    def _start_device(self) -> None:
        try:
            self._device.start()
        except ImportError as error:  # must not break the program's own import
            self._problems.append(f"device events: npu_runtime.observe cannot be used ({error})")

    def _start_ops(self) -> None:
        try:
            # Beside the trace: that place is known to be writable, and to have room for it.
            scratch = self.path.with_name(f".{self.path.name}.{self._pid}.kineto-")
            ops = TorchOps(scratch, stacks=self.options.stacks)
            ops.start()
        except (ImportError, RuntimeError, OSError) as error:
            self._problems.append(f"aten ops: torch's profiler does not start ({error})")
        else:
            self._ops = ops

    def _stop_ops(self) -> list[OpWindow]:
        windows: list[OpWindow] = []
        if self._ops is not None:
            try:
                self._ops.stop()
                windows = self._ops.read()
            except (RuntimeError, OSError, ValueError) as error:
                self._problems.append(f"aten ops: torch's recording cannot be read ({error})")
            self._problems += self._ops.problems
        return windows


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Stops looking for garbage while millions of objects are made that all stay (30 % faster)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("torch", "npu-profiler", "npu-runtime"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
