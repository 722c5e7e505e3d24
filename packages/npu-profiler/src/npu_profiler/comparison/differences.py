"""Compares samples of traces: how much slower or faster, and whether that is more than noise.

The time of a call is the median over the steps of a trace, or over parts of it where it has no
steps. With several traces on a side the means of these are compared, and the noise is that between
traces. With one on each side it is the noise between steps within a trace, which knows nothing of
what differs from one run of a program to the next. Estimates have no noise.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from npu_profiler.comparison.samples import Calls, Samples
from npu_profiler.comparison.statistics import (
    block_means,
    mean,
    noise_of_means,
    noise_of_medians,
)
from npu_profiler.queries.steps import Step

__all__ = [
    "Difference",
    "Verdict",
    "are_exact",
    "compare_calls",
    "compare_steps",
    "compare_totals",
    "shared_step",
]

Verdict = Literal["slower", "faster", "within noise", "noise unknown", "new", "gone"]

# Parts of a trace that has no steps.
_PARTS = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """How one op, layer, program or figure differs.

    Attributes:
        base_calls: in one step, or in one trace where traces have no steps in common.
        base_ns: time of a call; None where it does not appear.
        noise_ns: the times of a call may differ by so much though nothing changed; None if unknown.
        total_ns: how much more time all its calls take, in a step or trace.
        base_total_ns: the time of all its calls, in a step or trace.
    """

    name: str
    base_calls: float
    new_calls: float
    base_ns: float | None
    new_ns: float | None
    noise_ns: float | None
    base_total_ns: float
    total_ns: float
    verdict: Verdict

    @property
    def change(self) -> float | None:
        """Of the time of a call, as a part of the base's."""
        if not self.base_ns or self.new_ns is None:
            return None
        return self.new_ns / self.base_ns - 1

    @property
    def noise(self) -> float | None:
        """As a part of the base's time of a call."""
        if not self.base_ns or self.noise_ns is None:
            return None
        return self.noise_ns / self.base_ns

    @property
    def total_change(self) -> float | None:
        """Of the time of all calls, as a part of the base's."""
        return self.total_ns / self.base_total_ns if self.base_total_ns else None


def shared_step(samples: Sequence[Samples]) -> str | None:
    """The kind of steps that all traces have and that is most frequent; None if there is none."""
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
    """Compares a table of calls; those whose total changed most come first.

    Args:
        base: traces of before.
        new: traces of after.
        table: "program", "layer" or "op".
        step: kind of steps; calls outside of them are left out. None for whole traces.
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
    """The mean time of the calls within each step that has some."""
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
