"""Summarizes a recording while it runs."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npu_profiler.trace_format.timeline import Piece, Slice, Track

if TYPE_CHECKING:
    from npu_runtime.op_recording import OpTotal

__all__ = ["OpTime", "Summary", "Tally", "is_op", "op_times", "usual_lines"]

TOP_OPS = 5

# "aten::mm", "npu::program NAME"; not the compiler's and autograd's own brackets around ops, which
# torch records as ops too ("Torch-Compiled Region: 0/0", "AddmmBackward0",
# "torch::autograd::AccumulateGrad").
_OP_NAME = re.compile(r"(\w+::)+[\w.]+( .*)?")
_AUTOGRAD = ("autograd::engine::evaluate_function: ", "torch::autograd::")


@dataclass(frozen=True, slots=True)
class OpTime:
    """Time of all calls of one op: without (`self_ns`) and with the ops that it called."""

    name: str
    calls: int
    self_ns: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a recording."""

    events: int  # slices, marks, samples and arrows
    op_calls: int  # how many ops ran
    programs: int  # runs of device programs
    program_ns: int  # their time together
    layered_programs: int  # number of them with recorded layers
    layered_ns: int  # their time
    layer_ns: int  # the time of their layers
    top_ops: tuple[OpTime, ...]  # by self time, the longest first
    fallbacks: tuple[tuple[str, int], ...]  # fallback count of each op, the most frequent first
    facts: Mapping[str, Any]  # notes: versions, problems, clocks

    def lines(self) -> list[str]:
        """The text for a terminal, line by line."""
        programs = f"{self.programs:,} device programs ({self.program_ns / 1e6:,.1f} ms)"
        text = [f"{self.events:,} events: {self.op_calls:,} ops, {programs}"]
        if self.layered_programs:
            share = self.layer_ns / max(self.layered_ns, 1)
            text.append(
                f"layers of {self.layered_programs:,} runs: {share:.1%} of the time of these runs"
            )
        if self.top_ops:
            width = max(len(op.name) for op in self.top_ops)
            text.append("top ops by self time:")
            text += [
                f"  {op.name:<{width}}  {op.self_ns / 1e6:>10,.2f} ms  {op.calls:>9,} calls"
                for op in self.top_ops
            ]
        count = sum(number for _, number in self.fallbacks)
        text.append(f"fallbacks: {count:,}" + _named(self.fallbacks))
        text += usual_lines(self.programs, count)
        error_ns = self.facts.get("clock_error_ns")
        if error_ns is not None:
            text.append(f"clocks of ops and device agree within {error_ns / 1000:.2f} us")
        text += [f"missing: {problem}" for problem in self.facts.get("problems", ())]
        return text


class Tally:
    """Adds up pieces of a recording."""

    def __init__(self) -> None:
        self._events = 0
        self._programs = 0
        self._program_ns = 0
        self._latest: dict[Track, Slice] = {}
        self._layered_count = 0
        self._layered_ns = 0
        self._layer_ns = 0
        self._calls: Counter[str] = Counter()
        self._self_ns: Counter[str] = Counter()
        self._total_ns: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()

    def add(self, piece: Piece) -> None:
        """Counts a piece: programs, layers, fallbacks."""
        self._events += piece.event_count
        counted: Slice | None = None
        for item in piece.slices:
            if item.category == "program":
                self._programs += 1
                self._program_ns += item.duration_ns
                self._latest[item.track] = item
            elif item.category == "layer":
                told_us = (item.args or {}).get("duration_us")
                self._layer_ns += item.duration_ns if told_us is None else int(told_us) * 1000
                program = self._latest[item.track]
                if program is not counted:
                    counted = program
                    self._layered_count += 1
                    self._layered_ns += program.duration_ns
        self._fallbacks.update(m.name for m in piece.instants if m.category == "fallback")

    def add_ops(
        self, totals: Iterable["OpTotal | tuple[str, int, int, int]"], *, events: int
    ) -> None:
        """Counts ops by their times by name, and their events in the trace."""
        self._events += events
        for name, calls, self_ns, total_ns in totals:
            if is_op(name):
                self._calls[name] += calls
                self._self_ns[name] += self_ns
                self._total_ns[name] += total_ns

    def summarize(self, facts: Mapping[str, Any]) -> Summary:
        """Returns the counts so far."""
        ops = [
            OpTime(name, calls, self._self_ns[name], self._total_ns[name])
            for name, calls in self._calls.items()
        ]
        return Summary(
            events=self._events,
            op_calls=self._calls.total(),
            programs=self._programs,
            program_ns=self._program_ns,
            layered_programs=self._layered_count,
            layered_ns=self._layered_ns,
            layer_ns=self._layer_ns,
            top_ops=tuple(sorted(ops, key=lambda op: (-op.self_ns, op.name))[:TOP_OPS]),
            fallbacks=tuple(self._fallbacks.most_common()),
            facts=facts,
        )


def usual_lines(programs: int, fallbacks: int) -> list[str]:
    """Explains whether the number of programs and fallbacks is usual, and how to change it."""
    if not fallbacks:
        return []
    if not programs:
        return [
            "  usual for eager code: each op ran separately, by a CPU kernel on the device's",
            '  memory, without a copy; torch.compile(model, backend="npu") makes programs',
        ]
    return [
        "  usual for ops between programs: they ran on the device's memory, without a copy;",
        "  `npu-compiler explain` gives the reason for each op outside programs",
    ]


def is_op(name: str) -> bool:
    """Whether torch's record of this name is an op."""
    return _OP_NAME.fullmatch(name) is not None and not name.startswith(_AUTOGRAD)


def op_times(slices: Iterable[Slice]) -> list[tuple[str, int, int, int]]:
    """Calls, own time and whole time by name, of ops in the order of `timeline.nested`."""
    calls: Counter[str] = Counter()
    self_ns: Counter[str] = Counter()
    total_ns: Counter[str] = Counter()
    open_ops: dict[Track, list[tuple[str, int]]] = defaultdict(list)
    for item in slices:
        if item.category != "cpu_op" or not is_op(item.name):
            continue
        stack = open_ops[item.track]
        while stack and stack[-1][1] <= item.start_ns:
            stack.pop()
        calls[item.name] += 1
        self_ns[item.name] += item.duration_ns
        if not any(name == item.name for name, _ in stack):
            total_ns[item.name] += item.duration_ns  # a recursive call is already included
        if stack:
            self_ns[stack[-1][0]] -= item.duration_ns
        stack.append((item.name, item.end_ns))
    return [(name, calls[name], self_ns[name], total_ns[name]) for name in calls]


def _named(counts: tuple[tuple[str, int], ...], *, limit: int = 5) -> str:
    if not counts:
        return ""
    shown = ", ".join(f"{name} x{number}" for name, number in counts[:limit])
    more = f", {len(counts) - limit} more" if len(counts) > limit else ""
    return f" ({shown}{more})"
