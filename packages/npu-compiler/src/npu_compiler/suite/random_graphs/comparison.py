"""Compiles one random graph in one mode and compares its results, and what it wrote, with eager's.

How a graph becomes what the compiler takes is in capturing.py, how far results may lie apart in
tolerance.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from npu_compiler.compilation.records import GraphRecord, collecting
from npu_compiler.options import CompilerConfig
from npu_compiler.suite.random_graphs.capturing import (
    Compiled,
    captured_by_aot,
    captured_by_dynamo,
    recorded,
    traced,
)
from npu_compiler.suite.random_graphs.graph import RandomGraph
from npu_compiler.suite.random_graphs.modes import PLAIN, Mode
from npu_compiler.suite.random_graphs.tolerance import (
    allowed_differences,
    difference,
    unsettled_places,
)

__all__ = ["Comparison", "compare", "with_indices_inside"]

_CACHE_SIZE = "NPU_COMPILE_CACHE_SIZE_MB"
_SOURCE = re.compile(r"x(\d+)\.(size|stride)\(\)\[(\d+)\]")
_OTHER_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12)


@dataclass(frozen=True)
class Comparison:
    """How a graph ended.

    Attributes:
        kind: "equal"; "differs"; "silent", for an index out of range that raises nothing; "raises";
            "invalid", for a graph that eager refuses, or whose index it does not refuse, or that
            torch cannot capture.
        detail: what differs, or the error.
        programs: how many it became.
        nodes, lowered: calls, and those in programs.
        calls: how often results were compared, sizes that vary included.
        from_cache: programs that were neither lowered nor compiled.
    """

    kind: str = "equal"
    detail: str = ""
    programs: int = 0
    nodes: int = 0
    lowered: int = 0
    calls: int = 0
    from_cache: int = 0


def compare(graph: RandomGraph, mode: Mode = PLAIN) -> Comparison:
    """Runs a graph eagerly and compiled, and compares.

    The compiled graph is called twice. A graph with sizes that vary is called with others too. One
    that starts from the cache is compiled, and then again as a second process would do it. A graph
    with an index out of range is called with one in range before and after, and must raise between;
    after only where calls before leave no trace in its buffers.

    Args:
        graph: what to run.
        mode: how to compile it.
    """
    with torch.no_grad(), warnings.catch_warnings(), _cache(mode) as directory:
        warnings.simplefilter("ignore")
        run = _Run(graph, mode, mode.config(directory))
        with collecting() as records:
            try:
                run.judge()
            except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding
                text = " ".join(str(error).split())
                run.end = ("raises", f"{type(error).__name__}: {text[:300]}")
                if _is_refused_by_torch(graph, str(error)):
                    run.end = ("invalid", "torch refuses to capture it, for any backend")
    return _told(run, records)


def _told(run: _Run, records: Sequence[GraphRecord]) -> Comparison:
    programs = [program for record in records for program in record.programs]
    return Comparison(
        kind=run.end[0],
        detail=run.end[1],
        programs=len(programs),
        nodes=sum(record.node_count for record in records),
        lowered=sum(record.lowered_count for record in records),
        calls=run.calls,
        from_cache=sum(program.from_cache for program in programs),
    )


@contextlib.contextmanager
def _cache(mode: Mode) -> Iterator[Path | None]:
    """A directory for programs that are loaded again; otherwise programs are not kept at all."""
    before = os.environ.get(_CACHE_SIZE)
    with contextlib.ExitStack() as stack:
        directory = None
        if mode.start == "cache":
            memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
            made = tempfile.TemporaryDirectory(prefix="npu-graphs-", dir=memory)
            directory = Path(stack.enter_context(made))
        os.environ[_CACHE_SIZE] = "0" if directory is None else "100"
        try:
            yield directory
        finally:
            os.environ.pop(_CACHE_SIZE)
            if before is not None:
                os.environ[_CACHE_SIZE] = before


class _Run:
    """One graph in one mode, and what was found so far."""

    def __init__(self, graph: RandomGraph, mode: Mode, config: CompilerConfig) -> None:
        self._inside = with_indices_inside(graph)
        self._outside = None if self._inside is graph else graph
        self._mode = mode
        self._config = config
        self.calls = 0
        self.end = ("equal", "")

    def judge(self) -> None:
        """Compares, until something differs."""
        if not _runs(self._inside) or (self._outside is not None and _runs(self._outside)):
            self.end = ("invalid", "eager refuses it, or does not refuse its index")
            return
        starts = 2 if self._mode.start == "cache" else 1
        for start in range(starts):
            compiled, others = self._compiled()
            if not self._agrees(compiled, self._inside, times=self._times()):
                return
            if any(not self._agrees(compiled, other, times=1) for other in others):
                return
            if self._outside is not None and start == starts - 1:
                self._judge_outside(compiled, self._outside)

    def _judge_outside(self, compiled: Compiled, graph: RandomGraph) -> None:
        """An index out of range raises, at the call or when results are read."""
        self.calls += 1
        try:
            for result in compiled(*self._given(graph)):
                result.cpu()
        except (RuntimeError, IndexError, ValueError):
            if self._times() > 1:
                self._agrees(compiled, self._inside, times=1)
            return
        self.end = ("silent", "an index out of range raises nothing, as it does eagerly")

    def _times(self) -> int:
        """Buffers may be written: only the first call starts afresh."""
        graph = self._inside
        if not graph.is_writing:
            return 2
        pairs = zip(graph.tensors(), graph.values(), strict=False)
        frozen = [pair for pair, spec in zip(pairs, graph.inputs, strict=False) if spec.frozen]
        return 2 if all(torch.equal(fresh, used) for fresh, used in frozen) else 1

    def _compiled(self) -> tuple[Compiled, list[RandomGraph]]:
        graph, mode, config = self._inside, self._mode, self._config
        if mode.way == "traced":
            compiled, shapes = traced(graph, config, mode.device)
            return compiled, _other_sizes(graph, lambda other: _keeps_guards(graph, other, shapes))
        if mode.way == "dynamo":
            is_dynamic = mode.sizes != "static"
            compiled = captured_by_dynamo(graph, config, mode.device, dynamic=is_dynamic)
            return compiled, _other_sizes(graph, lambda other: True) if is_dynamic else []
        way = captured_by_aot if mode.way == "aot" or graph.is_writing else recorded
        return way(graph, config, mode.device), []

    def _agrees(self, compiled: Compiled, graph: RandomGraph, *, times: int) -> bool:
        expected = graph.compared(graph.values())
        allowed = allowed_differences(graph, expected, self._config.computed_in)
        unsettled = unsettled_places(graph, expected, allowed)
        for _ in range(times):
            given = self._given(graph)
            results = [*compiled(*given), *given]
            self.calls += 1
            found = difference(results, expected, allowed, unsettled)
            if found:
                self.end = ("differs", found)
                return False
        return True

    def _given(self, graph: RandomGraph) -> list[torch.Tensor]:
        return [tensor.to(self._mode.device) for tensor in graph.given()]


def with_indices_inside(graph: RandomGraph) -> RandomGraph:
    """The graph with all indices in range; the same object where they are."""
    if all(spec.fill != "outside" for spec in graph.inputs):
        return graph
    inputs = [
        dataclasses.replace(spec, fill="indices") if spec.fill == "outside" else spec
        for spec in graph.inputs
    ]
    return dataclasses.replace(graph, inputs=tuple(inputs))


def _other_sizes(graph: RandomGraph, fits: Callable[[RandomGraph], bool]) -> list[RandomGraph]:
    """Up to two variants of a graph with other sizes, on which it runs eagerly too."""
    letters = sorted({name for names in graph.names() for name in names} - {"-"})
    found: list[RandomGraph] = []
    for size in _OTHER_SIZES:
        sizes = {name: size + place for place, name in enumerate(letters)}
        other = graph.resized(sizes)
        if other != graph and len(found) < 2 and fits(other) and _runs(other):
            found.append(other)
    return found


def _runs(graph: RandomGraph) -> bool:
    try:
        graph.values()
    except (RuntimeError, IndexError):
        return False
    return True


def _is_refused_by_torch(graph: RandomGraph, error: str) -> bool:
    """Whether an error is that of torch's own fake tensors, whose strides may not be eager's."""
    with FakeTensorMode() as mode:
        try:
            graph.values([mode.from_tensor(tensor) for tensor in graph.tensors()])
        except (RuntimeError, ValueError) as refusal:
            reason = str(refusal).partition("\n")[0]
            return bool(reason) and reason in error
    return False


def _keeps_guards(graph: RandomGraph, other: RandomGraph, shapes: ShapeEnv) -> bool:
    """Whether another variant's sizes are as torch assumed when it traced the graph."""
    values: dict[Any, int] = {}
    given = other.given()
    free = set()
    for symbol, sources in shapes.var_to_sources.items():
        found = _SOURCE.fullmatch(sources[0].name)
        if found is None:
            return False
        index, axis = int(found[1]), int(found[3])
        values[symbol] = getattr(given[index], found[2])()[axis]
        if found[2] == "size":
            free.add((index, axis))
    for index, (tensor, traced_with) in enumerate(zip(given, graph.given(), strict=True)):
        pairs = enumerate(zip(tensor.shape, traced_with.shape, strict=True))
        if any(new != old and (index, axis) not in free for axis, (new, old) in pairs):
            return False
    for symbol, size in values.items():
        fixed = shapes.replacements.get(symbol)
        if fixed is not None and fixed.xreplace(values) != size:
            return False
        bounds = shapes.var_to_range.get(symbol)
        if bounds is not None and not bounds.lower <= size <= bounds.upper:
            return False
    return all(bool(guard.expr.xreplace(values)) for guard in shapes.guards)
