"""Compilation records: one per graph, passed to active collectors."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npu_compiler.passes.infra.pass_base import PassResult
from npu_compiler.verification.result import Verdict

if TYPE_CHECKING:
    import openvino as ov

    from npu_compiler.quantize import CompressionReport

__all__ = [
    "CompileStatistics",
    "EagerNode",
    "GraphRecord",
    "ProgramRecord",
    "collecting",
    "compile_statistics",
    "compression_report",
    "next_graph_name",
    "publish",
    "recalled_record",
    "show_model",
    "watching_models",
]


@dataclass(frozen=True)
class EagerNode:
    """A call that runs eagerly: FX node, op, reason, and file:line or None."""

    name: str
    op: str
    reason: str
    source: str | None


@dataclass(frozen=True)
class ProgramRecord:
    """A program of a graph.

    Attributes:
        name: as in traces.
        node_count: FX calls in it, without symbolic numbers and getitem.
        input_count, output_count: ports.
        constant_bytes: frozen weights.
        precision: of the computation: float32, bfloat16 or float16.
        lower_time_s, compile_time_s: of lowering, and of the device's compiler.
        compression: the compressed weights, with the error; None without compression.
        from_cache: whether it was read from the cache, neither lowered nor compiled.
        drops_nan: ops lowered to forms that may drop NaN, one entry per call.
        verdict: result of comparing its first results with torch's; None without verification.
        target: "openvino", the device's compiler, or "kernels", npu-ops' kernels.
        target_reason: reason for this target.
        rewritten: for target "NPU", each operation that was replaced by an equal form, with the
            rule that refuses it.
    """

    name: str
    node_count: int
    input_count: int
    output_count: int
    constant_bytes: int
    precision: str
    lower_time_s: float
    compile_time_s: float
    compression: CompressionReport | None = None
    from_cache: bool = False
    drops_nan: tuple[str, ...] = ()
    verdict: Verdict | None = None
    target: str = "openvino"
    target_reason: str = ""
    rewritten: tuple[str, ...] = ()


@dataclass(frozen=True)
class GraphRecord:
    """A captured graph.

    Attributes:
        name: such as graph_0.
        kind: inference, forward or backward.
        node_count: FX calls, without symbolic numbers, getitem, returned views and writes into
            inputs.
        programs: in the order they run.
        eager: calls that run between programs.
        frozen_count: inputs that became constants.
        rebuilds: how often it was compiled again because a frozen weight changed.
        passes: the passes that changed the graph, in order.
        tuned: the fastest measured candidate, None without a measurement.
        auto_kept: the choice of keep_float32="auto" with its errors; "" if not used.
    """

    name: str
    kind: str
    node_count: int
    programs: tuple[ProgramRecord, ...]
    eager: tuple[EagerNode, ...]
    frozen_count: int
    rebuilds: int
    passes: tuple[PassResult, ...] = ()
    tuned: str | None = None
    auto_kept: str = ""

    @property
    def lowered_count(self) -> int:
        """Calls that are in a program."""
        return sum(program.node_count for program in self.programs)


@dataclass(frozen=True)
class CompileStatistics:
    """Counters of this process's compilations.

    Attributes:
        graphs: compilations of captured graphs, including repeated ones.
        programs: their programs.
        from_cache: programs that were neither lowered nor compiled.
        compile_time_s: seconds in the device's compiler.
    """

    graphs: int = 0
    programs: int = 0
    from_cache: int = 0
    compile_time_s: float = 0.0

    @property
    def compiled(self) -> int:
        """Number of programs that the device compiled."""
        return self.programs - self.from_cache


_numbers = itertools.count()
_statistics = CompileStatistics()
_collectors: list[list[GraphRecord]] = []
_watchers: list[Callable[[str, ov.Model], None]] = []
_lock = threading.Lock()


@contextlib.contextmanager
def collecting() -> Iterator[list[GraphRecord]]:
    """Gathers the records of graphs that are compiled inside the block, on any thread."""
    records: list[GraphRecord] = []
    with _lock:
        _collectors.append(records)
    try:
        yield records
    finally:
        with _lock:
            # By identity: two empty lists are equal.
            index = next(i for i, kept in enumerate(_collectors) if kept is records)
            del _collectors[index]


def compile_statistics() -> CompileStatistics:
    """Returns this process's counters so far; subtract two to measure a part."""
    return _statistics


def next_graph_name() -> str:
    """Returns the name of the next graph of this process, such as graph_0."""
    return f"graph_{next(_numbers)}"


def compression_report(content: Mapping[str, Any] | None) -> CompressionReport | None:
    """Rebuilds a report from its dataclasses.asdict form, also after JSON."""
    if content is None:
        return None
    from npu_compiler.quantize import CompressedWeight, CompressionReport  # late: imports openvino

    weights = tuple(
        CompressedWeight(**{**weight, "shape": tuple(weight["shape"])})
        for weight in content["weights"]
    )
    return CompressionReport(**{**content, "weights": weights})


@contextlib.contextmanager
def watching_models(watch: Callable[[str, ov.Model], None]) -> Iterator[None]:
    """Calls `watch` with each program's name and model before the device compiles it.

    The model's constants live until the program is loaded. A program from the cache has no model.
    """
    with _lock:
        _watchers.append(watch)
    try:
        yield
    finally:
        with _lock:
            _watchers.remove(watch)


def show_model(name: str, model: ov.Model) -> None:
    """Passes a lowered model to all watchers."""
    for watch in tuple(_watchers):
        watch(name, model)


def recalled_record(content: Mapping[str, Any], *, name: str) -> GraphRecord:
    """Rebuilds a graph's record from another's JSON form: one program, no eager calls."""
    (written,) = content["programs"]
    program = ProgramRecord(
        **{
            **written,
            "compression": compression_report(written["compression"]),
            "drops_nan": tuple(written.get("drops_nan", ())),
            "rewritten": tuple(written.get("rewritten", ())),
            "verdict": Verdict.from_json(written["verdict"]),
        }
    )
    record = GraphRecord(
        **{
            **content,
            "eager": (),
            "programs": (),
            "passes": tuple(PassResult(**result) for result in content["passes"]),
        }
    )
    program = replace(program, name=name, lower_time_s=0.0, compile_time_s=0.0, from_cache=True)
    return replace(record, name=name, programs=(program,), rebuilds=0)


def publish(record: GraphRecord) -> None:
    """Passes a record to all collectors."""
    global _statistics
    with _lock:
        now, programs = _statistics, record.programs
        _statistics = CompileStatistics(
            graphs=now.graphs + 1,
            programs=now.programs + len(programs),
            from_cache=now.from_cache + sum(program.from_cache for program in programs),
            compile_time_s=now.compile_time_s + sum(p.compile_time_s for p in programs),
        )
        for records in _collectors:
            records.append(record)
