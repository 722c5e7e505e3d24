"""What can be compared of a trace: the time of each call of each op, layer and program."""

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npu_profiler.queries.intervals import busy_intervals, total_ns
from npu_profiler.queries.ops import is_op_number
from npu_profiler.queries.overview import op_ns
from npu_profiler.queries.programs import layer_ns
from npu_profiler.queries.steps import Step, find_steps
from npu_profiler.reading import Trace, Track

__all__ = ["Calls", "Samples", "take_samples"]


class Calls:
    """Calls of one op, layer or program, each with its begin and time in nanoseconds.

    Of several threads they come thread by thread.
    """

    def __init__(self) -> None:
        self.starts: array[int] = array("q")
        self.times: array[int] = array("q")

    def add(self, start_ns: int, time_ns: int) -> None:
        """Adds a call."""
        self.starts.append(start_ns)
        self.times.append(time_ns)


@dataclass(frozen=True, slots=True)
class Samples:
    """What a trace gives to compare.

    Attributes:
        totals: of the trace as a whole, in nanoseconds: "wall time", "npu:0 busy", "host in ops".
        steps: those of each kind, by their start.
        calls: by table ("program", "layer", "op") and name; the time of an op is its own.
        is_exact: whether the times are estimates, which have no noise.
    """

    totals: Mapping[str, int]
    steps: Mapping[str, Sequence[Step]]
    calls: Mapping[str, Mapping[str, Calls]]
    is_exact: bool


def take_samples(trace: Trace) -> Samples:
    """Reads them out of a trace."""
    steps: dict[str, list[Step]] = defaultdict(list)
    for step in find_steps(trace):
        steps[step.kind].append(step)
    ops: dict[str, Calls] = defaultdict(Calls)
    for track in trace.host_tracks:
        _add_ops(track, ops)
    programs: dict[str, Calls] = defaultdict(Calls)
    for program in trace.slices("program"):
        programs[program.name].add(program.start_ns, program.duration_ns)
    layers: dict[str, Calls] = defaultdict(Calls)
    for layer in trace.slices("layer"):
        around = layer.parent
        name = layer.name if around is None else f"{around.name}: {layer.name}"
        layers[name].add(layer.start_ns, layer_ns(layer))
    totals = {"wall time": trace.end_ns - trace.start_ns}
    for device, busy in busy_intervals(trace).items():
        totals[f"npu:{device} busy"] = total_ns(busy)
    totals["host in ops"] = sum(map(op_ns, trace.host_tracks))
    calls = {"program": programs, "layer": layers, "op": ops}
    return Samples(totals, steps, calls, bool(trace.estimate))


def _add_ops(track: Track, found: dict[str, Calls]) -> None:
    category, is_op_name = track.names.find("cpu_op"), is_op_number(track)
    words, names, categories = track.names.words, track.name_numbers, track.category_numbers
    stack: list[tuple[int, Calls, int]] = []  # end, and where its own time stands
    for index, (start, duration) in enumerate(zip(track.starts, track.durations, strict=True)):
        name = names[index]
        if categories[index] != category or not is_op_name[name]:
            continue
        while stack and stack[-1][0] <= start:
            stack.pop()
        if stack:
            end, caller, place = stack[-1]
            caller.times[place] -= min(start + duration, end) - start
        calls = found[words[name]]
        calls.add(start, duration)
        stack.append((start + duration, calls, len(calls.times) - 1))
