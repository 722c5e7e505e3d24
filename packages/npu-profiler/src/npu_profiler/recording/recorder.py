"""One recording from start to file: when to listen, and when to write."""

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npu_command.host_memory import resident_bytes
from npu_command.import_hooks import when_imported
from npu_command.interpreter import collector_paused
from npu_profiler.errors import TraceError
from npu_profiler.listeners.calls import ImportCalls, ModuleCalls
from npu_profiler.listeners.device_events import DeviceEvents, is_told_of_layers
from npu_profiler.listeners.thread_names import ThreadNames
from npu_profiler.output_file import check_writable
from npu_profiler.recording.assemble import Assembler
from npu_profiler.recording.steps import StepGate, is_step, listen_to_torch
from npu_profiler.recording.summary import Summary, Tally, op_times
from npu_profiler.signals import signals_blocked
from npu_profiler.torch_side.kineto_file import align
from npu_profiler.torch_side.torch_windows import OpWindow, TorchWindows
from npu_profiler.trace_format.timeline import Piece, Sample, nested
from npu_profiler.trace_format.trace_file import (
    TraceFile,
    format_piece,
    format_tracks,
    new_flow_ids,
)
from npu_profiler.trace_format.tracks import Tracks

if TYPE_CHECKING:
    from npu_runtime.observe import Event
    from npu_runtime.op_recording import OpRecording

__all__ = ["Recording", "TraceOptions", "mark_step", "trace"]

# Ops come at a million a second at most, device events at 400,000 (2026-11).
_PIECE_S = 0.5
_MEMORY_S = 0.05
# Slices on rows of threads, between Python calls.
_ON_THREADS = ("launch", "sync", "module", "import")

_current: "Recording | None" = None
_current_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options of a recording."""

    # Record Python calls too; several times the cost, and ops and calls are only written at the
    # end.
    stacks: bool = False
    modules: bool = False  # record calls of torch modules, each with its path in its model
    # Record the device's layers of some runs of each program, of programs that are loaded while it
    # runs or with NPU_PROFILE_LAYERS=1.
    layers: bool = False
    layers_first: int = 3  # number of first runs of each program
    layers_every: int = 100  # then every n-th run; 0 for none
    memory: bool = False  # record how much memory the process has, twenty times a second
    warmup: int = 0  # steps that are not recorded at the start (`steps.py` defines a step)
    steps: int = 0  # number of steps recorded then; 0 for all
    program: str = ""  # title of the process in the trace; the script's name if empty

    def __post_init__(self) -> None:
        """Raises [trace-option] for an invalid count or flag."""
        for name in ("stacks", "modules", "layers", "memory"):
            value = getattr(self, name)
            if not isinstance(value, bool | int):
                raise TraceError(
                    f"trace: `{name}` must be a bool, got a {type(value).__name__}. Pass one.",
                    code="trace-option",
                )
        for name in ("layers_first", "layers_every", "warmup", "steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise TraceError(
                    f"trace: `{name}` must be 0 or more, got {value!r}. Pass a count.",
                    code="trace-option",
                )


@contextlib.contextmanager
def trace(
    path: str | os.PathLike[str],
    *,
    stacks: bool = False,
    layers: bool = False,
    modules: bool = False,
) -> Iterator["Recording"]:
    """Records the body and writes it to `path` as a Chrome trace.

    The file grows while the body runs, and is complete at its end, even if the body raises; its
    error propagates.

        with npu_profiler.trace("step.json"):
            loss = model(x).sum()
            loss.backward()

    Args:
        path: the file, replaced if there; compressed when it ends in .gz.
        stacks: record Python calls as well.
        layers: record layers of programs that are loaded inside.
        modules: record calls of torch modules.

    Raises:
        TraceError: [output-unwritable] for a path that is not writable, [trace-active] if another
            recording runs.
        OSError: the file could not be written at the end.
    """
    options = TraceOptions(stacks=stacks, layers=layers, modules=modules)
    recording = Recording(Path(path), options)
    recording.start()
    try:
        yield recording
    finally:
        recording.finish()


def mark_step() -> None:
    """Marks the end of a step of the program; has no effect without a recording."""
    recording = _current
    if recording is not None and recording.is_ours:
        recording.gate.mark("step")


class Recording:
    """A recording of this process: all threads, ops from the first import of npu_runtime on.

    Args:
        path: file of the trace.
        options: the recording options.

    Attributes:
        path: file of the trace.
        options: the recording options.
        gate: selects the recorded steps.
        summary: summary of the recording; None until it is finished.
    """

    def __init__(self, path: Path, options: TraceOptions) -> None:
        if not isinstance(path, Path) or not isinstance(options, TraceOptions):
            raise TraceError(
                "Recording: arguments must be a pathlib.Path and TraceOptions, got "
                f"{type(path).__name__} and {type(options).__name__}. "
                "npu_profiler.trace makes one.",
                code="trace-option",
            )
        self.path = path.absolute()  # the program may change the directory
        self.options = options
        self.summary: Summary | None = None
        self.gate = StepGate(
            warmup=options.warmup,
            steps=options.steps,
            on_open=self._open_gate,
            on_close=self._close,
        )
        self._pid = os.getpid()
        self._start_ns = 0
        # Of the recorded steps; events arrive later than they happen.
        self._opened_ns: int | None = None if options.warmup else 0
        self._closed_ns: int | None = None
        self._problems: list[str] = []
        self._file: TraceFile | None = None
        self._flow_ids = new_flow_ids()
        self._ops: OpRecording | None = None
        self._windows: TorchWindows | None = None
        self._modules: ModuleCalls | None = None
        self._end_marks: Callable[[], None] | None = None
        self._device = DeviceEvents(watch=self._watch)
        self._held: list[Piece] = []  # with stacks: rows of threads, until their ops are there
        self._thread_names = ThreadNames()
        self._imports = ImportCalls()
        self._tally = Tally()
        self._tracks = Tracks(
            pid=self._pid,
            program=options.program or Path(sys.argv[0]).name or "-",
            thread_name=self._thread_names.get,
        )
        self._assembler = Assembler(self._tracks)
        self._writing = threading.RLock()
        self._stopping = threading.Event()
        self._upkeep = threading.Thread(target=self._keep_up, name="npu-profiler", daemon=True)
        self._stop_waiting: list[Callable[[], None]] = []

    @property
    def is_ours(self) -> bool:
        """Whether this is the recording process, not a fork of it."""
        return os.getpid() == self._pid

    def start(self) -> None:
        """Starts to record; libraries that are not imported yet are recorded from their import on.

        Raises [output-unwritable], [trace-active], or OSError if the disk is full, for example.
        """
        global _current
        check_writable(self.path, "trace output")
        with _current_lock:
            if _current is not None and _current.is_ours:
                raise TraceError(
                    f"trace: there must be one recording at a time, got another while "
                    f"{_current.path.name} is being recorded. Finish that first.",
                    code="trace-active",
                )
            _current = self
        self._start_ns = time.time_ns()
        self._thread_names.start()
        first = format_tracks(self._tracks.take_new())
        try:
            self._file = TraceFile(self.path, start_ns=self._start_ns, first=first)
        except OSError:
            _current = None
            self._thread_names.stop()
            raise
        with signals_blocked():
            self._upkeep.start()
        self._imports.start()
        for name, start in (("npu_runtime", self._start_runtime), ("torch", self._start_torch)):
            self._stop_waiting.append(when_imported(name, start))

    def finish(self) -> None:
        """Completes the file, or raises OSError. Has no effect when repeated or in a fork."""
        global _current
        if _current is not self or not self.is_ours:
            return
        _current = None
        with collector_paused():
            self._finish()

    def _finish(self) -> None:
        self._stopping.set()
        for stop in self._stop_waiting:
            stop()
        if self._end_marks is not None:
            self._end_marks()
        if self._ops is not None:
            self._ops.stop()
        if self._modules is not None:
            self._modules.stop()
        if self.options.layers and self._device.is_listening:
            from npu_runtime import layer_recording

            layer_recording.stop()
        self._device.stop()
        self._imports.stop()
        self._thread_names.stop()
        with self._writing:
            facts = self._finish_windows()
            self._tracks.rename_threads()
            self._write_piece()
            file, self._file = self._file, None
            if self._modules is not None and self._modules.dropped:
                self._problems.append(f"{self._modules.dropped:,} calls of modules past the limit")
            if self._device.dropped:
                self._problems.append(f"{self._device.dropped:,} device events past the limit")
            if self.gate.steps < self.options.warmup:
                self._problems.append(
                    f"all but the warm-up: {self.gate.steps} steps were marked, and the warm-up "
                    f"takes {self.options.warmup}"
                )
            facts = {"problems": self._problems, **_versions(), **facts}
            self.summary = self._tally.summarize(facts)
            if file is not None:
                file.finish(facts)

    def _keep_up(self) -> None:
        interval_s = _MEMORY_S if self.options.memory else _PIECE_S
        written_s = time.monotonic()
        while not self._stopping.wait(interval_s):
            if self.options.memory and self.gate.is_open:
                self._write(Piece(samples=self._memory_samples()))
            if time.monotonic() - written_s < _PIECE_S:
                continue
            # Outside of our lock: the program's main thread may hold the runtime's, and a signal
            # may make it finish the recording right there.
            self._device.fetch()
            if self._windows is not None:
                self._windows.keep_bounded()
            with self._writing:
                if not self._stopping.is_set():
                    self._write_piece()
            written_s = time.monotonic()

    def _watch(self, event: "Event") -> bool:
        if is_step(event):
            self.gate.mark("npu-llm")
        return is_told_of_layers(event) or self._is_recorded(event.start_ns)

    def _is_recorded(self, time_ns: int) -> bool:
        is_begun = self._opened_ns is not None and time_ns >= self._opened_ns
        return is_begun and (self._closed_ns is None or time_ns <= self._closed_ns)

    def _open_gate(self) -> None:
        self._open()
        self._opened_ns = time.time_ns()

    def _open(self) -> None:
        if self._ops is not None:
            self._ops.start()
        if self._windows is not None:
            self._windows.start()
        if self._modules is not None:
            self._modules.start()

    def _close(self) -> None:
        # Leave torch's profiler running: stopping it during ops crashes the process.
        self._closed_ns = time.time_ns()
        if self._ops is not None:
            self._ops.stop()
        if self._modules is not None:
            self._modules.stop()

    def _write_piece(self) -> None:
        """Writes the events since the last piece. Call it with the lock held."""
        piece = self._assembler.place(self._device.take())
        imports = [call for call in self._imports.take() if self._is_recorded(call.start_ns)]
        if imports:
            slices = [*piece.slices, *self._assembler.place_imports(imports)]
            piece = dataclasses.replace(piece, slices=slices)
        if self._modules is not None:
            modules = self._assembler.place_modules(self._modules.take())
            piece = dataclasses.replace(piece, slices=[*piece.slices, *modules])
        if self.options.stacks:
            held = [item for item in piece.slices if item.category in _ON_THREADS]
            self._held.append(Piece(slices=held))
            rest = [item for item in piece.slices if item.category not in _ON_THREADS]
            piece = dataclasses.replace(piece, slices=rest)
        if self._ops is not None:
            ops = self._ops.take()
            self._tally.add_ops(ops.totals, events=ops.events)
            if ops.dropped:
                self._problems.append(f"{ops.dropped:,} ops that came faster than they are written")
            for thread_id in ops.thread_ids:
                self._tracks.thread(thread_id)
            self._put(ops.text)
        self._write(piece)

    def _write(self, piece: Piece) -> None:
        with self._writing:
            self._tally.add(piece)
            text = format_piece(piece, self._start_ns, flow_ids=self._flow_ids)
            self._put(format_tracks(self._tracks.take_new()) + text)

    def _put(self, text: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._problems.append(f"all that came after the file was full ({error.strerror})")
            self._file.close()
            self._file = None

    def _memory_samples(self) -> list[Sample]:
        resident, own = resident_bytes()
        track, now_ns = self._tracks.thread(self._pid), time.time_ns()
        return [
            Sample(track, "process memory", "resident_bytes", now_ns, resident),
            Sample(track, "process memory", "resident_own_bytes", now_ns, own),
        ]

    def _start_runtime(self) -> None:
        try:
            from npu_runtime.op_recording import OpRecording

            self._device.start()
            if not self.options.stacks:
                self._ops = OpRecording(self._start_ns)
            if self.options.layers:
                from npu_runtime import layer_recording

                layer_recording.start(
                    first=self.options.layers_first, every=self.options.layers_every
                )
        except ImportError as error:  # must not break the program's import
            self._problems.append(f"ops and device events: npu_runtime cannot be used ({error})")
        if self.gate.is_open:
            self._open()

    def _start_torch(self) -> None:
        try:
            self._end_marks = listen_to_torch(self.gate.mark)
            if self.options.modules:
                self._modules = ModuleCalls()
                if self.gate.is_open:
                    self._modules.start()
            if self.options.stacks:
                # Next to the trace: that folder is writable and has space.
                scratch = self.path.with_name(f".{self.path.name}.{self._pid}.kineto-")
                windows = TorchWindows(scratch)
                if self.gate.is_open:
                    windows.start()
                self._windows = windows
        except (ImportError, RuntimeError, OSError) as error:
            self._problems.append(f"Python calls: torch's profiler does not start ({error})")

    def _finish_windows(self) -> dict[str, object]:
        """Writes the records of torch's profiler, with the rows that it shares."""
        if self._windows is None:
            return {}
        windows: list[OpWindow] = []
        try:
            self._windows.stop()
            windows = self._windows.read()
        except (RuntimeError, OSError, ValueError) as error:
            self._problems.append(f"aten ops: torch's recording cannot be read ({error})")
        self._problems += self._windows.problems
        alignment = align([mark for window in windows for mark in window.marks])
        for window in windows:
            for thread_id, name in window.recorded.thread_names.items():
                self._thread_names.add(thread_id, name)
        unreadable = sum(window.recorded.unreadable for window in windows)
        gaps = self._assembler.place_gaps(windows, time.time_ns())
        piece = self._assembler.place_windows(
            windows,
            alignment,
            own_thread_id=self._upkeep.native_id,
            until_ns=self._closed_ns,
        )
        self._write_piece()
        slices = nested([*piece.slices, *(item for held in self._held for item in held.slices)])
        self._tally.add_ops(op_times(slices), events=0)
        self._write(Piece(slices=[*slices, *gaps.slices], flows=piece.flows))
        return {
            "clock_offset_ns": alignment.offset_ns,
            "clock_error_ns": alignment.error_ns,
            "clock_marks": alignment.marks,
            "unreadable_torch_events": unreadable,
        }


def _versions() -> dict[str, str]:
    """Returns the versions of Python and of the installed packages that make a trace, by name."""
    found = {"python": platform.python_version()}
    for name in ("torch", "npu-profiler", "npu-runtime"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
