"""The base class of passes, which declare a rewrite of a captured graph and are checked."""

from __future__ import annotations

import abc
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch.utils import _pytree as pytree

from npu_compiler.errors import PassError
from npu_compiler.graph.nodes import op_name
from npu_compiler.graph.origins import is_kept_float32
from npu_runtime.public_calls import public_call

__all__ = ["ALL_KINDS", "Facts", "GraphPass", "PassResult"]

ALL_KINDS = frozenset({"inference", "forward", "backward"})


@dataclass(frozen=True)
class Facts:
    """Inputs of passes besides the graph."""

    kind: str = "inference"  # inference, forward or backward
    constants: frozenset[str] = frozenset()  # placeholders that become constants of the program
    # Ops, such as "aten.gelu.default", that passes must not fuse.
    kept_ops: frozenset[str] = frozenset()
    # Whether programs for the device's compiler include calls for which the host's cores have a
    # kernel.
    for_device: bool = False
    # Ops that write to an argument -> their functional forms.
    functional_forms: Mapping[Any, torch._ops.OpOverload] = field(default_factory=dict)

    @public_call
    def is_kept(self, node: fx.Node) -> bool:
        """Whether a call must stay unchanged, by its op or its module's name."""
        target = node.target
        if target is auto_functionalized_v2:  # is the op in its first argument
            target = cast(Any, node.args[0])
        return op_name(target) in self.kept_ops or is_kept_float32(node)


@dataclass(frozen=True)
class PassResult:
    """Result of a pass.

    Attributes:
        name: name of the pass, such as fuse_linear.
        stage: normalize, fuse or layout.
        count: number of rewrites.
        time_s: duration in seconds, including the check.
    """

    name: str
    stage: str
    count: int
    time_s: float


@dataclass(frozen=True)
class GraphPass(abc.ABC):
    """A rewrite of a functional aten graph with fake values in the `meta["val"]` of its nodes.

    A subclass is a frozen dataclass. Its fields are options; it declares `name`, `stage` and
    `kinds`, and implements `call`. A pass with `by_default` False runs only on request, as the
    tuner does: it pays off only on some devices. `run` then checks that the graph is well formed,
    that every call has a value, and that inputs and outputs are unchanged.
    """

    name: ClassVar[str]
    stage: ClassVar[str]
    kinds: ClassVar[frozenset[str]] = ALL_KINDS
    by_default: ClassVar[bool] = True

    @abc.abstractmethod
    def call(self, graph: fx.Graph, facts: Facts) -> int:
        """Rewrites the graph in place; returns the number of rewrites, 0 for an unchanged graph."""

    def run(self, graph: fx.Graph, facts: Facts) -> PassResult:
        """Runs the pass and checks its result; raises [pass-broke-graph] for an invalid graph."""
        started = time.perf_counter()
        count = 0
        if facts.kind in self.kinds:
            before = _interface(graph)
            count = self.call(graph, facts)
            if count:
                self._check(graph, before)
        return PassResult(self.name, self.stage, count, time.perf_counter() - started)

    def _check(self, graph: fx.Graph, before: list[str]) -> None:
        try:
            graph.lint()
        except RuntimeError as failure:
            raise self._broke(str(failure)) from failure
        for node in graph.nodes:
            if node.op == "call_function" and "val" not in node.meta and not _is_silent(node):
                raise self._broke(f"{node.name} ({node.target}) has no value")
        after = _interface(graph)
        if before != after:
            changed = next(
                (pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]),
                (f"{len(before)} ports", f"{len(after)} ports"),
            )
            raise self._broke(f"{changed[0]} became {changed[1]}")

    def _broke(self, what: str) -> PassError:
        return PassError(
            f"pass {self.name}: a pass must keep a graph's inputs and outputs, and give every call "
            f"a value, got {what}. Compile with disabled_passes=({self.name!r},), and please "
            "report this.",
            code="pass-broke-graph",
        )


def _is_silent(node: fx.Node) -> bool:
    """Whether a call has no result, such as an assert."""
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns


def _interface(graph: fx.Graph) -> list[str]:
    """Returns inputs and outputs of a graph, as text."""
    return [*_described(graph)]


def _described(graph: fx.Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.op == "placeholder":
            yield f"input {node.name}: {_value(node.meta.get('val'))}"
        elif node.op == "output":
            for index, result in enumerate(pytree.tree_leaves(node.args)):
                value = result.meta.get("val") if isinstance(result, fx.Node) else result
                yield f"output {index}: {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(str(size) for size in tuple(value.shape))
        return f"{str(value.dtype).removeprefix('torch.')} ({sizes}) on {value.device}"
    return str(value)
