"""The steps of a program, as its trace shows them.

A step is a prefill or decode of npu-llm, a `ProfilerStep#N` of torch.profiler, or lasts from the
end of one step of an optimizer to the end of the next; the first kind that a trace has counts.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

from npu_profiler.reading import SliceRef, Trace

__all__ = ["Step", "find_steps"]

_PROFILER_STEP = re.compile(r"ProfilerStep[#*]?\d*")
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#.+")


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        kind: "decode", "prefill", "step" or "optimizer step".
        number: among the steps of its kind, from 1.
    """

    kind: str
    number: int
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


def find_steps(trace: Trace) -> list[Step]:
    """The steps by their start; none if the trace shows none."""
    answers = [item for item in trace.slices("prefill", "decode") if not _is_in_another(item)]
    if answers:
        return _numbered([(item.category, item.start_ns, item.end_ns) for item in answers])
    named = list(trace.slices("user_annotation"))
    profiled = [item for item in named if _PROFILER_STEP.fullmatch(item.name)]
    if profiled:
        return _numbered([("step", item.start_ns, item.end_ns) for item in profiled])
    optimized = [item for item in named if _OPTIMIZER_STEP.fullmatch(item.name)]
    if not optimized:
        return []
    # Several optimizers may take turns within one step: the one that is seen most often counts.
    names = [item.name for item in optimized]
    chosen = max(sorted(set(names)), key=names.count)
    ends = sorted(item.end_ns for item in optimized if item.name == chosen)
    begin = min((track.starts[0] for track in {item.track for item in optimized}), default=0)
    return _numbered([("optimizer step", start, end) for start, end in pairwise([begin, *ends])])


def _is_in_another(item: SliceRef) -> bool:
    return any(around.category in ("prefill", "decode") for around in item.ancestors())


def _numbered(found: list[tuple[str, int, int]]) -> list[Step]:
    count: dict[str, int] = {}
    steps = []
    for kind, start, end in sorted(found, key=lambda step: step[1]):
        count[kind] = count.get(kind, 0) + 1
        steps.append(Step(kind, count[kind], start, end))
    return steps
