"""Reports of torch.compile(backend="npu") on a model, as object, table and JSON."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters

from npu_compiler.graph_compiler.records import EagerNode, GraphRecord, ProgramRecord, collecting
from npu_compiler.torch_compile.backend import compiled_config, npu, options_of, plain_call
from npu_runtime.public_calls import public_call

__all__ = ["Explanation", "explain", "graph_breaks_since"]


@dataclass(frozen=True)
class Explanation:
    """The report on a compiled model.

    Attributes:
        graphs: one record per captured graph, in the order of their first call.
        graph_breaks: reason -> number of graph breaks.
        total_time_s: capture, lowering, the device's compilation and the first call.
    """

    graphs: tuple[GraphRecord, ...]
    graph_breaks: Mapping[str, int]
    total_time_s: float

    @property
    def program_count(self) -> int:
        """Number of programs in all graphs."""
        return sum(len(graph.programs) for graph in self.graphs)

    @property
    def node_count(self) -> int:
        """Number of calls in all graphs."""
        return sum(graph.node_count for graph in self.graphs)

    @property
    def lowered_count(self) -> int:
        """Number of calls in programs."""
        return sum(graph.lowered_count for graph in self.graphs)

    @property
    def eager(self) -> tuple[EagerNode, ...]:
        """Calls of all graphs that run eagerly."""
        return tuple(node for graph in self.graphs for node in graph.eager)

    @property
    def compile_time_s(self) -> float:
        """Compilation time of the device's compiler."""
        return sum(p.compile_time_s for graph in self.graphs for p in graph.programs)

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields as JSON-compatible values."""
        return {
            **dataclasses.asdict(self),
            "program_count": self.program_count,
            "node_count": self.node_count,
            "lowered_count": self.lowered_count,
            "compile_time_s": self.compile_time_s,
        }

    def to_json(self) -> str:
        """Returns everything as a JSON object."""
        return json.dumps(self.as_dict(), indent=2)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@public_call
def explain(
    model: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Explanation:
    """Recompiles a model, calls it once, and reports the result.

    The report has inference graphs for a module in eval mode and under `torch.no_grad()`. Otherwise
    it has the forward graphs of training; backward graphs are compiled when a gradient is needed.

    Args:
        model: module or function; also one that torch.compile returned.
        args: its arguments.
        options: as for torch.compile(options=...); by default those of a module compiled in place.
        kwargs: its keyword arguments.

    Raises:
        OptionError: an option is unknown.
        LoweringError: with options={"strict": True}, a call cannot be lowered.
    """
    original = getattr(model, "_orig_mod", model)
    is_inference = isinstance(original, torch.nn.Module) and not original.training
    if isinstance(original, torch.nn.Module) and (config := compiled_config(original)):
        original = plain_call(original)
        if options is None:
            options = options_of(config)

    # A separate backend, so that dynamo does not reuse code compiled before.
    def explained(graph_module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return npu(graph_module, inputs, options=options)

    before = dict(counters["graph_break"])
    started = time.perf_counter()
    with collecting() as records, torch.no_grad() if is_inference else nullcontext():
        torch.compile(original, backend=explained)(*args, **kwargs)
    total_time_s = time.perf_counter() - started
    return Explanation(tuple(records), graph_breaks_since(before), total_time_s)


def graph_breaks_since(before: Mapping[str, int]) -> dict[str, int]:
    """Returns reason -> number of graph breaks since dynamo's counters had the given values."""
    return {
        " ".join(str(reason).split()): count - before.get(reason, 0)
        for reason, count in counters["graph_break"].items()
        if count > before.get(reason, 0)
    }


def _lines(explanation: Explanation) -> Iterator[str]:
    share = explanation.lowered_count / max(explanation.node_count, 1)
    yield (
        f"{_count(len(explanation.graphs), 'graph')}, "
        f"{_count(explanation.program_count, 'program')}: "
        f"{explanation.lowered_count} of {explanation.node_count} nodes lowered ({share:.0%}); "
        f"{_count(sum(explanation.graph_breaks.values()), 'graph break')}; "
        f"{explanation.total_time_s:.2f} s, of which the device compiled "
        f"{explanation.compile_time_s:.2f} s"
    )
    rows = [
        (
            program.name,
            graph.kind,
            str(program.node_count),
            f"{program.input_count}/{program.output_count}",
            f"{program.constant_bytes / 1e6:.1f}",
            _precision(program),
            program.target,
            f"{program.lower_time_s:.3f}",
            f"{program.compile_time_s:.3f}",
            "yes" if program.from_cache else "no",
            _verified(program),
        )
        for graph in explanation.graphs
        for program in graph.programs
    ]
    if rows:
        header = (
            "program",
            "kind",
            "nodes",
            "in/out",
            "weights MB",
            "precision",
            "target",
            "lower s",
            "compile s",
            "from cache",
            "verified",
        )
        yield ""
        yield from _table(header, rows)
    reasons = [
        (program.name, f"{program.target}: {program.target_reason}")
        for graph in explanation.graphs
        for program in graph.programs
        if program.target_reason
    ]
    if reasons:
        yield ""
        yield from _table(("program", "made for"), reasons)
    for graph in explanation.graphs:
        for program in graph.programs:
            if program.verdict is not None and program.verdict.status != "right":
                yield ""
                yield f"{program.name}: {program.verdict}"
    fired: dict[str, int] = {}
    for graph in explanation.graphs:
        for result in graph.passes:
            fired[result.name] = fired.get(result.name, 0) + result.count
    if fired:
        yield ""
        yield from _table(("pass", "places"), [(name, str(n)) for name, n in fired.items()])
    grouped: dict[tuple[str, str, str], int] = {}
    for node in explanation.eager:
        key = (node.op, node.reason, node.source or "")
        grouped[key] = grouped.get(key, 0) + 1
    if grouped:
        yield ""
        eager_rows = [(op, str(n), reason, line) for (op, reason, line), n in grouped.items()]
        yield from _table(("runs eagerly", "times", "because", "source"), eager_rows)
    for graph in explanation.graphs:
        if graph.auto_kept:
            yield ""
            yield f"{graph.name}: {graph.auto_kept}"
    yield from _rewritten_lines(explanation)
    yield from _nan_lines(explanation)
    for reason, count in explanation.graph_breaks.items():
        yield ""
        yield f"graph break ({count}x): {reason}"


def _rewritten_lines(explanation: Explanation) -> Iterator[str]:
    rows = [
        (program.name, text)
        for graph in explanation.graphs
        for program in graph.programs
        for text in program.rewritten
    ]
    if rows:
        yield ""
        yield from _table(("program", "rewritten, since an NPU would refuse it"), rows)


def _nan_lines(explanation: Explanation) -> Iterator[str]:
    dropping: dict[str, int] = {}
    for graph in explanation.graphs:
        for program in graph.programs:
            for op in program.drops_nan:
                dropping[op] = dropping.get(op, 0) + 1
    if dropping:
        yield ""
        yield from _table(
            ("may drop NaN", "times"), [(op, str(count)) for op, count in sorted(dropping.items())]
        )


def _verified(program: ProgramRecord) -> str:
    """Returns one word: whether a program's first results were compared with torch's."""
    if program.verdict is None:
        return "no"
    return "yes" if program.verdict.status == "right" else program.verdict.status


def _precision(program: ProgramRecord) -> str:
    if program.compression is None or not program.compression.weights:
        return program.precision
    modes = sorted({weight.mode for weight in program.compression.weights})
    return f"{program.precision}, weights {'/'.join(modes)}"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, tuple("-" * width for width in widths), *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
