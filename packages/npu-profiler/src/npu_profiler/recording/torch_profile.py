"""`npu_profiler.profile`: torch.profiler.profile with additional device events in its trace.

torch's profiler records ops and prints tables; layers, compile phases, steps and counters of the
device are recorded separately and added to the exported trace. Recording a whole program unchanged
is in npu_profiler.recording.recorder.
"""

import contextlib
import dataclasses
import gzip
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import torch.profiler
from torch.profiler import ProfilerAction, ProfilerActivity

from npu_profiler.config import quiet_kineto
from npu_profiler.errors import TraceError
from npu_profiler.listeners.calls import ModuleCall, ModuleCalls
from npu_profiler.listeners.device_events import DeviceEvents
from npu_profiler.listeners.thread_names import ThreadNames
from npu_profiler.recording.assemble import Assembler
from npu_profiler.trace_format.timeline import Piece, Slice
from npu_profiler.trace_format.trace_file import (
    GZIP_LEVEL,
    format_piece,
    format_tracks,
    new_flow_ids,
)
from npu_profiler.trace_format.tracks import DEVICE_PID, OWN_TIDS, Tracks
from npu_runtime import layer_recording, npu
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["NPUProfiler", "profile"]

# Already in kineto's trace, as device rows or calls on their threads.
_TORCH_HAS = {"program", "copy", "launch", "sync", "fallback"}
_CHUNK = 1 << 20


class profile(torch.profiler.profile):  # torch's name, as a drop-in replacement
    """torch.profiler.profile with the device's layers and the platform's own phases in its trace.

    All of torch's arguments and methods; `export_chrome_trace` (and so `tensorboard_trace_handler`)
    writes more:

    - rows `layers` of each device: with `layers=True`, the layers of some runs of each program,
      laid out from the program's start by execution order;
    - with `with_modules=True`, calls of modules: on the rows of their threads, or with
      `with_stack=True` on rows next to them;
    - `compile phases` and `prefill and decode` of npu-compiler and npu-llm;
    - curves of the device's memory.

        with npu_profiler.profile(layers=True) as profiler:
            model(x)
        profiler.export_chrome_trace("step.json")

    Args:
        activities: as torch's; without `PrivateUse1` nothing of the device is added.
        layers: record layers of programs that are loaded from now on, or in a process with
            NPU_PROFILE_LAYERS=1.
        layers_first: of each program's first runs in a window.
        layers_every: after those of each run of this distance; 0 for none.
        schedule: as torch's, like all that follow.

    Raises:
        TraceError: [trace-option] There are activities, and none that torch supports here.
    """

    @public_call
    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        layers: bool = False,
        layers_first: int = 3,
        layers_every: int = 100,
        with_modules: bool = False,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        chosen = None if activities is None else set(activities)
        known = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
        if chosen is not None and chosen.isdisjoint(known):
            raise TraceError(
                "profile: `activities` must have one that torch supports here: "
                f"{', '.join(sorted(one.name for one in known))}, got {len(chosen)} others. Omit "
                "them for all.",
                code="trace-option",
            )
        super().__init__(
            activities=chosen,
            schedule=schedule,
            on_trace_ready=on_trace_ready,
            with_modules=with_modules,
            **options,
        )
        self._modules = ModuleCalls() if with_modules else None
        self._called: list[ModuleCall] = []
        self._with_device = chosen is None or ProfilerActivity.PrivateUse1 in chosen
        self._layers = (layers_first, layers_every) if layers else None
        self._device = DeviceEvents()
        self._threads = ThreadNames()
        self._heard: list[Event] = []
        if layers:
            # From here on: programs are often loaded before the first window.
            layer_recording.start(first=0, every=0)

    def prepare_trace(self) -> None:
        """Called by torch; keeps kineto's output off the program's stderr."""
        with quiet_kineto():
            super().prepare_trace()

    def start_trace(self) -> None:
        """Starts recording; called by torch by its schedule."""
        super().start_trace()
        if self._modules is not None:
            self._modules.start()
        if self._with_device:
            self._device = DeviceEvents()
            self._device.start()
            # Second: it reports the layer origins of programs loaded before.
            if self._layers is not None:
                layer_recording.start(first=self._layers[0], every=self._layers[1])

    def stop_trace(self) -> None:
        """Ends the window; called by torch."""
        if self._modules is not None:
            self._modules.stop()
            self._called = self._modules.take()
        if self._device.is_listening:
            self._device.stop()
            self._heard = self._device.take()
        super().stop_trace()

    def stop(self) -> None:
        """Ends the recording; raises [trace-state] if it was not started."""
        try:
            super().stop()
        except AssertionError:  # torch's: a schedule without a window may end unbegun, others not
            self._check_begun("ended")
            raise
        if self._layers is not None:
            layer_recording.stop()

    @public_call
    def export_chrome_trace(
        self, path: str | os.PathLike[str], use_python_export: bool = False
    ) -> None:
        """Writes the window as a Chrome trace.

        Args:
            path: the file; compressed when it ends in .gz.
            use_python_export: as torch's.

        Raises:
            OSError: it cannot be written.
            TraceError: [trace-state] Nothing was recorded.
        """
        self._check_begun("written")
        target = Path(path)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
            plain = Path(scratch) / "kineto.json"
            super().export_chrome_trace(str(plain), use_python_export)
            with plain.open("rb") as source, _open(target) as sink:
                head, base_ns = _read_head(source)
                sink.write(head)
                sink.write(self._rows(base_ns))
                shutil.copyfileobj(source, sink, _CHUNK)

    def _check_begun(self, what: str) -> None:
        if self.profiler is None:
            raise TraceError(
                f"profile: a recording must be started before it is {what}, got none. Use it with "
                "`with`, or call start() first.",
                code="trace-state",
            )

    def _rows(self, base_ns: int) -> bytes:
        """Returns the events that torch lacks, each with a trailing comma."""
        tracks = Tracks(pid=os.getpid(), program="", thread_name=self._threads.get)
        tracks.take_new()  # the process itself is torch's
        assembler = Assembler(tracks)
        piece = assembler.place(self._heard)
        modules = self._place_modules(tracks, assembler)
        layers = [
            Slice(
                tracks.device(
                    {"device_index": item.track.pid - DEVICE_PID},
                    item.track.name.replace("programs", "layers"),
                ),
                item.category,
                item.name,
                item.start_ns,
                item.duration_ns,
                item.args,
            )
            for item in piece.slices
            if item.category == "layer"
        ]
        rest = [item for item in piece.slices if item.category not in {*_TORCH_HAS, "layer"}]
        added = Piece([*modules, *layers, *rest], [], piece.samples, [])
        # Rows of threads have torch's names.
        used = {
            (item.track.pid, item.track.tid)
            for item in added.slices
            if item.track.pid != os.getpid() or item.track.tid >= OWN_TIDS
        }
        used |= {(sample.track.pid, sample.track.tid) for sample in added.samples}
        rows = [track for track in tracks.take_new() if (track.pid, track.tid) in used]
        text = format_tracks(rows) + format_piece(added, base_ns, flow_ids=new_flow_ids())
        return text.removeprefix(b",") + b",\n" if text else b""

    def _place_modules(self, tracks: Tracks, assembler: Assembler) -> list[Slice]:
        modules = assembler.place_modules(self._called)
        if not self.with_stack:
            return modules
        # They begin within Python calls of our hooks, and slices of one row must not cross.
        return [
            dataclasses.replace(item, track=tracks.host(f"modules of {item.track.name}"))
            for item in modules
        ]


class NPUProfiler(profile):
    """`profile`, with the time of its body by two events of the device.

        with npu_profiler.NPUProfiler() as profiler:
            model(x)
        print(profiler.elapsed_time(), "ms")
        print(profiler.key_averages().table(sort_by="self_npu_time_total"))

    Args:
        options: those of `profile`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._ends: list[npu.Event] = []

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._ends = [_recorded_event()]
        return self

    def __exit__(self, *error: Any) -> None:
        self._ends.append(_recorded_event())
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def elapsed_time(self) -> float:
        """Returns the milliseconds between the events on the current stream; waits for the second.

        Raises:
            TraceError: [trace-state] The body has not ended.
        """
        if len(self._ends) != 2:
            raise TraceError(
                "NPUProfiler.elapsed_time: the body must have ended, got one that has not. Call it "
                "after the `with` statement.",
                code="trace-state",
            )
        start, end = self._ends
        end.synchronize()
        return start.elapsed_time(end)


def _recorded_event() -> npu.Event:
    event = npu.Event(enable_timing=True)
    event.record()
    return event


def _open(path: Path) -> contextlib.AbstractContextManager[Any]:
    return gzip.open(path, "wb", GZIP_LEVEL) if path.suffix == ".gz" else path.open("wb")


def _read_head(source: IO[bytes]) -> tuple[bytes, int]:
    """Reads up to the first event; returns that and the epoch of the times after it, in ns."""
    text = b""
    while True:
        line = source.readline()
        if not line:
            raise ValueError("torch's profiler wrote no traceEvents")
        text += line
        found = re.search(rb'"traceEvents"\s*:\s*\[', text)
        if found:
            epoch = re.search(rb'"baseTimeNanoseconds"\s*:\s*(\d+)', text)
            return text, int(epoch.group(1)) if epoch else 0
