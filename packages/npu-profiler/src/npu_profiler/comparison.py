"""Compares samples of traces: the change in time, and whether it exceeds the noise.

The time of a call is the median over a trace's steps, or over parts of a trace without steps. With
several traces per side, their means are compared, and the noise is measured between traces. With
one per side, it is measured between steps, which ignores variation between runs. Estimates have no
noise.
"""

import math
import statistics
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Literal

from npu_profiler.queries.ops import is_op_number
from npu_profiler.queries.overview import op_ns
from npu_profiler.queries.programs import layer_ns
from npu_profiler.queries.spans import Step, busy_intervals, find_steps, total_ns
from npu_profiler.reading import Trace, Track

__all__ = [
    "Calls",
    "Difference",
    "Samples",
    "Verdict",
    "are_exact",
    "block_means",
    "compare_calls",
    "compare_steps",
    "compare_totals",
    "mean",
    "noise_of_means",
    "noise_of_medians",
    "shared_step",
    "t_bound",
    "take_samples",
]


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
    """The comparable values of a trace."""

    # Of the trace as a whole, in nanoseconds: "wall time", "npu:0 busy", "host in ops".
    totals: Mapping[str, int]
    steps: Mapping[str, Sequence[Step]]  # those of each kind, by their start
    # By table ("program", "layer", "op") and name; the time of an op is its own.
    calls: Mapping[str, Mapping[str, Calls]]
    is_exact: bool  # whether the times are estimates, which have no noise


def take_samples(trace: Trace) -> Samples:
    """Reads the samples of a trace."""
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
    stack: list[tuple[int, Calls, int]] = []  # end, and index of its self time
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


Verdict = Literal["slower", "faster", "within noise", "noise unknown", "new", "gone"]

# Parts of a trace that has no steps.
_PARTS = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one op, layer, program or figure."""

    name: str
    base_calls: float  # per step, or per trace if the traces have no common steps
    new_calls: float
    base_ns: float | None  # time of a call; None if absent
    new_ns: float | None
    # Noise of the time of a call; None if unknown.
    noise_ns: float | None
    base_total_ns: float  # the time of all its calls, in a step or trace
    total_ns: float  # change of the time of all its calls, per step or trace
    verdict: Verdict

    @property
    def change(self) -> float | None:
        """Relative change of the time of a call."""
        if not self.base_ns or self.new_ns is None:
            return None
        return self.new_ns / self.base_ns - 1

    @property
    def noise(self) -> float | None:
        """Noise relative to the base's time of a call."""
        if not self.base_ns or self.noise_ns is None:
            return None
        return self.noise_ns / self.base_ns

    @property
    def total_change(self) -> float | None:
        """Relative change of the time of all calls."""
        return self.total_ns / self.base_total_ns if self.base_total_ns else None


def shared_step(samples: Sequence[Samples]) -> str | None:
    """Returns the most frequent kind of step that all traces have; None if there is none."""
    kinds = set.intersection(*(set(one.steps) for one in samples)) if samples else set()
    return max(sorted(kinds), key=lambda kind: len(samples[0].steps[kind]), default=None)


def are_exact(samples: Iterable[Samples]) -> bool:
    """Whether all times are estimates, which have no noise."""
    return all(one.is_exact for one in samples)


def compare_totals(base: Sequence[Samples], new: Sequence[Samples]) -> list[Difference]:
    """Compares the figures of whole traces."""
    names = [name for name in base[0].totals if all(name in one.totals for one in [*base, *new])]
    return [
        _difference(
            name,
            [_Values([float(one.totals[name])], 1) for one in base],
            [_Values([float(one.totals[name])], 1) for one in new],
            is_exact=are_exact([*base, *new]),
        )
        for name in names
    ]


def compare_steps(base: Sequence[Samples], new: Sequence[Samples]) -> list[Difference]:
    """Compares the steps of each kind that both sides have."""
    kinds = {kind: None for one in base for kind in one.steps}
    return [
        _difference(
            kind,
            [_durations(one.steps[kind]) for one in base if kind in one.steps],
            [_durations(one.steps[kind]) for one in new if kind in one.steps],
            is_exact=False,
        )
        for kind in kinds
        if any(kind in one.steps for one in new)
    ]


def compare_calls(
    base: Sequence[Samples], new: Sequence[Samples], table: str, *, step: str | None
) -> list[Difference]:
    """Compares a table ("program", "layer" or "op"); calls whose total changed most come first.

    Only calls within steps of the given kind count; None compares whole traces.
    """
    found = [
        {
            name: values
            for name, calls in one.calls[table].items()
            if (values := _in_steps(calls, one.steps[step]) if step else _in_parts(calls)).times
        }
        for one in [*base, *new]
    ]
    names = {name: None for one in found for name in one}
    rows = [
        _difference(
            name,
            [one.get(name, _NONE) for one in found[: len(base)]],
            [one.get(name, _NONE) for one in found[len(base) :]],
            is_exact=are_exact([*base, *new]),
        )
        for name in names
    ]
    return sorted(rows, key=lambda row: (-abs(row.total_ns), row.name))


@dataclass(frozen=True, slots=True)
class _Values:
    """Times of a call, and how many calls there are in a step or trace."""

    times: Sequence[float]
    calls: float


_NONE = _Values((), 0)


def _difference(
    name: str, base: Sequence[_Values], new: Sequence[_Values], *, is_exact: bool
) -> Difference:
    before = [median(values.times) for values in base if values.times]
    after = [median(values.times) for values in new if values.times]
    noise_ns: float | None
    if is_exact:
        noise_ns = 0
    elif len(base) == len(new) == 1:
        noise_ns = noise_of_medians(base[0].times, new[0].times)
    else:
        noise_ns = noise_of_means(before, after)
    base_ns = mean(before) if before else None
    new_ns = mean(after) if after else None
    base_calls, new_calls = (mean([one.calls for one in side]) for side in (base, new))
    base_total_ns = (base_ns or 0) * base_calls
    return Difference(
        name,
        base_calls,
        new_calls,
        base_ns,
        new_ns,
        noise_ns,
        base_total_ns,
        (new_ns or 0) * new_calls - base_total_ns,
        _verdict(base_ns, new_ns, noise_ns),
    )


def _verdict(base_ns: float | None, new_ns: float | None, noise_ns: float | None) -> Verdict:
    if base_ns is None:
        return "new"
    if new_ns is None:
        return "gone"
    if noise_ns is None:
        return "noise unknown"
    if abs(new_ns - base_ns) <= noise_ns:
        return "within noise"
    return "slower" if new_ns > base_ns else "faster"


def _durations(steps: Sequence[Step]) -> _Values:
    return _Values([float(step.duration_ns) for step in steps], 1)


def _in_steps(calls: Calls, steps: Sequence[Step]) -> _Values:
    """Returns the mean time of the calls in each step that has calls."""
    starts = [step.start_ns for step in steps]
    by_step: dict[int, list[int]] = defaultdict(list)
    for start, time in zip(calls.starts, calls.times, strict=True):
        at = bisect_right(starts, start) - 1
        if at >= 0 and start < steps[at].end_ns:
            by_step[at].append(time)
    count = sum(map(len, by_step.values()))
    return _Values([mean(by_step[at]) for at in sorted(by_step)], count / len(steps))


def _in_parts(calls: Calls) -> _Values:
    return _Values(block_means(calls.times, _PARTS), len(calls.times))


# A false positive rate of 1%.
CONFIDENCE = 0.99

# The median deviation of so few values is often small by chance.
_FEW = 6
_NORMAL_SPREAD = 1.4826
_NORMAL_MEDIAN = 1.2533

_TINY = 1e-300
_PRECISE = 1e-12


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def block_means(values: Sequence[float], blocks: int) -> list[float]:
    """Returns means of consecutive values, in a number of blocks of about equal size.

    Consecutive calls are correlated, and calls of one op differ by shape: block means are more
    independent and more uniform. Returns the values if there are fewer than two per block.
    """
    if len(values) < 2 * blocks:
        return list(values)
    edges = [round(at * len(values) / blocks) for at in range(blocks + 1)]
    return [mean(values[start:end]) for start, end in pairwise(edges)]


def noise_of_means(base: Sequence[float], new: Sequence[float]) -> float | None:
    """Returns the noise bound of a difference of means; None if there are too few values.

    Assumes independent values with equal variance; one side may have a single value.
    """
    freedom = len(base) + len(new) - 2
    if freedom < 1 or not base or not new:
        return None
    squares = sum((value - mean(side)) ** 2 for side in (base, new) for value in side)
    deviation = math.sqrt(squares / freedom * (1 / len(base) + 1 / len(new)))
    return t_bound(freedom) * deviation


def noise_of_medians(base: Sequence[float], new: Sequence[float]) -> float | None:
    """Returns the noise bound for medians, which are robust to outliers; needs two values."""
    if len(base) < 2 or len(new) < 2:
        return None
    variance = sum((_NORMAL_MEDIAN * _deviation(side)) ** 2 / len(side) for side in (base, new))
    return t_bound(len(base) + len(new) - 2) * math.sqrt(variance)


def _deviation(values: Sequence[float]) -> float:
    if len(values) < _FEW:
        return statistics.stdev(values)
    middle = statistics.median(values)
    spread = statistics.median(abs(value - middle) for value in values)
    # If most values are equal, the others still show that there is noise.
    return _NORMAL_SPREAD * spread if spread else statistics.stdev(values)


@lru_cache(maxsize=1024)
def t_bound(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Returns the two-sided bound of Student's t for a confidence and degrees of freedom."""
    low, high = 0.0, 1e4
    while high - low > 1e-6 * max(high, 1.0):
        middle = (low + high) / 2
        outside = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + middle * middle))
        if outside > 1 - confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(a, b, x) / a
    return 1 - front * _continued_fraction(b, a, 1 - x) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    c = 1.0
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            result *= d * c
        if abs(d * c - 1) < _PRECISE:
            break
    return result


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
