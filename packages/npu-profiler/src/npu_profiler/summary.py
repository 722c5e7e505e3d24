"""Counts a timeline: the few lines that one reads after a run.

Reads no file and draws nothing; the timeline comes from `assemble.py`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npu_profiler.timeline import Timeline, Track

__all__ = ["OpTime", "Summary", "summarize"]

TOP_OPS = 5

# "aten::mm", "npu::program NAME"; not the compiler's and autograd's own brackets around ops, which
# torch records as ops too ("Torch-Compiled Region: 0/0", "AddmmBackward0").
_OP_NAME = re.compile(r"(\w+::)+[\w.]+( .*)?")


@dataclass(frozen=True, slots=True)
class OpTime:
    """Time of all calls of one op.

    Attributes:
        self_ns: Without the ops that it called.
        total_ns: With them.
    """

    name: str
    calls: int
    self_ns: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What one reads first of a recording.

    Attributes:
        events: Slices, marks, samples and arrows.
        op_calls: How many ops ran.
        programs: Runs of device programs.
        program_ns: Their time together.
        top_ops: By self time, the longest first.
        fallbacks: How often each op fell back, the most frequent first.
        facts: The timeline's.
    """

    events: int
    op_calls: int
    programs: int
    program_ns: int
    top_ops: tuple[OpTime, ...]
    fallbacks: tuple[tuple[str, int], ...]
    facts: Mapping[str, Any]

    def lines(self) -> list[str]:
        """The text for a terminal, line by line."""
        programs = f"{self.programs:,} device programs ({self.program_ns / 1e6:,.1f} ms)"
        text = [f"{self.events:,} events: {self.op_calls:,} ops, {programs}"]
        if self.top_ops:
            width = max(len(op.name) for op in self.top_ops)
            text.append("top ops by self time:")
            text += [
                f"  {op.name:<{width}}  {op.self_ns / 1e6:>10,.2f} ms  {op.calls:>9,} calls"
                for op in self.top_ops
            ]
        count = sum(number for _, number in self.fallbacks)
        text.append(f"fallbacks: {count:,}" + _named(self.fallbacks))
        error_ns = self.facts.get("clock_error_ns")
        if error_ns is not None:
            text.append(f"clocks of ops and device agree within {error_ns / 1000:.2f} us")
        text += [f"missing: {problem}" for problem in self.facts.get("problems", ())]
        return text


def summarize(timeline: Timeline) -> Summary:
    """Counts `timeline`."""
    programs = [item for item in timeline.slices if item.category == "program"]
    fallbacks = Counter(mark.name for mark in timeline.instants if mark.category == "fallback")
    ops = _op_times(timeline)
    return Summary(
        events=timeline.event_count,
        op_calls=sum(op.calls for op in ops),
        programs=len(programs),
        program_ns=sum(item.duration_ns for item in programs),
        top_ops=tuple(sorted(ops, key=lambda op: (-op.self_ns, op.name))[:TOP_OPS]),
        fallbacks=tuple(fallbacks.most_common()),
        facts=timeline.facts,
    )


def _op_times(timeline: Timeline) -> list[OpTime]:
    calls: Counter[str] = Counter()
    self_ns: Counter[str] = Counter()
    total_ns: Counter[str] = Counter()
    open_ops: dict[Track, list[tuple[str, int]]] = defaultdict(list)
    for item in timeline.slices:  # a parent stands before its children
        if item.category != "cpu_op" or not _OP_NAME.fullmatch(item.name):
            continue
        stack = open_ops[item.track]
        while stack and stack[-1][1] <= item.start_ns:
            stack.pop()
        calls[item.name] += 1
        self_ns[item.name] += item.duration_ns
        if not any(name == item.name for name, _ in stack):
            total_ns[item.name] += item.duration_ns  # a recursive call is inside already
        if stack:
            self_ns[stack[-1][0]] -= item.duration_ns
        stack.append((item.name, item.end_ns))
    return [OpTime(name, calls[name], self_ns[name], total_ns[name]) for name in calls]


def _named(counts: tuple[tuple[str, int], ...], *, limit: int = 5) -> str:
    if not counts:
        return ""
    shown = ", ".join(f"{name} x{number}" for name, number in counts[:limit])
    more = f", {len(counts) - limit} more" if len(counts) > limit else ""
    return f" ({shown}{more})"
