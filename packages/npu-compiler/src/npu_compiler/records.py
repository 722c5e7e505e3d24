"""What was compiled, as data: one record per graph, handed to whoever collects.

Showing it is npu_compiler.explain's work.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from npu_compiler.quantize import CompressionReport
from npu_compiler.passes.base import PassResult

__all__ = ["EagerNode", "GraphRecord", "ProgramRecord", "collecting", "publish"]


@dataclass(frozen=True)
class EagerNode:
    """A call that runs eagerly.

    Attributes:
        name: of the FX node.
        op: such as aten.roll.default.
        reason: why it is in no program.
        source: file:line of the Python code, or None when not recorded.
    """

    name: str
    op: str
    reason: str
    source: str | None


@dataclass(frozen=True)
class ProgramRecord:
    """A program of a graph.

    Attributes:
        name: as in traces.
        node_count: FX calls in it, without symbolic numbers and picks from tuples.
        input_count, output_count: ports.
        constant_bytes: frozen weights.
        precision: in which it computes: float32, bfloat16 or float16.
        lower_time_s, compile_time_s: ours, and the device's.
        compression: which weights were compressed, with the error; None when none was to be.
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


@dataclass(frozen=True)
class GraphRecord:
    """A captured graph.

    Attributes:
        name: such as graph_0.
        kind: inference, forward or backward.
        node_count: FX calls, without symbolic numbers, picks from tuples, views that are returned
            and writes into inputs.
        programs: in the order they run.
        eager: calls that run between programs.
        frozen_count: inputs that became constants.
        rebuilds: how often it was compiled again because a frozen weight changed.
        passes: those that rewrote something, in the order they ran.
    """

    name: str
    kind: str
    node_count: int
    programs: tuple[ProgramRecord, ...]
    eager: tuple[EagerNode, ...]
    frozen_count: int
    rebuilds: int
    passes: tuple[PassResult, ...] = ()

    @property
    def lowered_count(self) -> int:
        """Calls that are in a program."""
        return sum(program.node_count for program in self.programs)


_collectors: list[list[GraphRecord]] = []
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


def publish(record: GraphRecord) -> None:
    """Hands a record to all who collect."""
    with _lock:
        for records in _collectors:
            records.append(record)
