"""Device programs: how often and how long they ran, and how much of that their layers explain."""

from collections import defaultdict
from dataclasses import dataclass

from npu_profiler.reading import SliceRef, Trace

__all__ = ["ProgramRow", "layer_ns", "program_rows"]


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """All runs of one program on one device.

    Attributes:
        layered: how many of its runs told their layers.
        layered_ns: the time of those runs.
        layer_ns: the time of their layers.
    """

    name: str
    device: int
    runs: int
    total_ns: int
    least_ns: int
    most_ns: int
    layered: int
    layered_ns: int
    layer_ns: int

    @property
    def mean_ns(self) -> float:
        """The time of one run."""
        return self.total_ns / self.runs


def program_rows(trace: Trace) -> list[ProgramRow]:
    """Programs by their time, the longest first."""
    runs: dict[tuple[str, int], list[int]] = defaultdict(list)
    for program in trace.slices("program"):
        runs[program.name, program.track.device or 0].append(program.duration_ns)
    layered: dict[tuple[str, int], dict[SliceRef, int]] = defaultdict(lambda: defaultdict(int))
    for layer in trace.slices("layer"):
        around = layer.parent
        if around is not None:
            layered[around.name, around.track.device or 0][around] += layer_ns(layer)
    rows = []
    for (name, device), times in runs.items():
        told = layered.get((name, device), {})
        rows.append(
            ProgramRow(
                name,
                device,
                len(times),
                sum(times),
                min(times),
                max(times),
                len(told),
                sum(run.duration_ns for run in told),
                sum(told.values()),
            )
        )
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))


def layer_ns(layer: SliceRef) -> int:
    """What the device told of a layer's time, which may be more than what could be drawn."""
    told_us = layer.args.get("duration_us")
    return round(told_us * 1000) if isinstance(told_us, int | float) else layer.duration_ns
