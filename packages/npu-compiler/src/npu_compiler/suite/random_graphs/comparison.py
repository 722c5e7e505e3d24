"""Compiles one random graph and compares its results, and what it wrote, with eager's.

Dynamo is left out: the graph is handed to the backend in the form in which dynamo hands one over,
so that thousands take minutes. AOTAutograd and all that follows run as in torch.compile.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import fx

from npu_compiler.backend import npu
from npu_compiler.records import collecting
from npu_compiler.suite.random_graphs.graph import RandomGraph

__all__ = ["Comparison", "compare"]

# Rounding of one op, relative to the largest number on the way to a result, by the coarsest dtype.
_ROUNDING = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}
# Eager's own distance from float64 shows how far a graph spreads rounding.
_SPREAD = 8.0


@dataclass(frozen=True)
class Comparison:
    """How a graph ended.

    Attributes:
        difference: what differs, or None.
        programs: how many it became.
        nodes, lowered: calls, and those in programs.
    """

    difference: str | None
    programs: int = 0
    nodes: int = 0
    lowered: int = 0


def compare(graph: RandomGraph, *, device: str = "cpu") -> Comparison:
    """Runs a graph eagerly and compiled, and compares.

    The compiled graph is called twice, and once more as the second process meets it: made anew,
    with its programs from the cache on disk. Each call has inputs of its own.

    Args:
        graph: what to run.
        device: where the compiled graph's tensors live, "cpu" or "npu".
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = graph.module()
        inputs = _given(graph)
        reference = module(*inputs)
        expected = [*reference, *inputs]
        allowed = _allowed(graph, expected)
        # The module's buffers may have been written: only its first call starts afresh.
        calls = 1 if _writes_buffer(graph, module) else 2
        with collecting() as records:
            difference = _compiled_difference(graph, device, expected, allowed, calls=calls)
        if difference is None:
            difference = _compiled_difference(graph, device, expected, allowed, calls=1)
    return Comparison(
        difference,
        sum(len(record.programs) for record in records),
        sum(record.node_count for record in records),
        sum(record.lowered_count for record in records),
    )


def _compiled_difference(
    graph: RandomGraph,
    device: str,
    expected: list[torch.Tensor],
    allowed: list[float],
    *,
    calls: int,
) -> str | None:
    compiled = npu(graph.module(device), [t.to(device) for t in _given(graph)])
    for _ in range(calls):
        given = [t.to(device) for t in _given(graph)]
        results = [*compiled(*given), *given]
        difference = _difference(results, expected, allowed)
        if difference:
            return difference
    return None


def _given(graph: RandomGraph) -> list[torch.Tensor]:
    tensors = zip(graph.tensors(), graph.inputs, strict=True)
    return [tensor for tensor, spec in tensors if not spec.frozen]


def _writes_buffer(graph: RandomGraph, used: fx.GraphModule) -> bool:
    fresh = dict(graph.module().named_buffers())
    return any(not torch.equal(fresh[name], kept) for name, kept in used.named_buffers())


def _allowed(graph: RandomGraph, expected: list[torch.Tensor]) -> list[float]:
    """The largest difference each result may have, from the dtypes and numbers on the way."""
    walk = _Walk(graph.module())
    walk.run(*_given(graph))
    wide = _Walk(graph.module(), widened=True)
    exact = [*wide.run(*[_wide(t) for t in _given(graph)])]
    coarsest = max((_ROUNDING[d] for d in walk.dtypes if d in _ROUNDING), default=2e-5)
    bounds = []
    for index, tensor in enumerate(expected):
        if not tensor.is_floating_point():
            bounds.append(0.0)
            continue
        noise = 0.0
        if index < len(exact) and exact[index].shape == tensor.shape:
            gap = (tensor.double() - exact[index].double()).abs()
            noise = float(gap.max()) if bool(gap.isfinite().all()) else 0.0
        bounds.append(coarsest * max(1.0, walk.largest) + _SPREAD * noise)
    return bounds


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


class _Walk(fx.Interpreter):
    """Runs a graph and notes its dtypes and its largest number; widened, in float64."""

    def __init__(self, module: fx.GraphModule, *, widened: bool = False) -> None:
        super().__init__(module.double() if widened else module)
        self._widened = widened
        self.dtypes: set[torch.dtype] = set()
        self.largest = 0.0

    def run_node(self, n: fx.Node) -> object:
        """Runs one node; a cast to a narrower type is one to float64 here."""
        if self._widened and n.op in ("call_function", "call_method"):
            narrow = (torch.float16, torch.bfloat16, torch.float32)
            n.args = tuple(torch.float64 if a in narrow else a for a in n.args)
            n.kwargs = {k: torch.float64 if v in narrow else v for k, v in n.kwargs.items()}
        value: object = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self.dtypes.add(value.dtype)
            if value.is_floating_point() and value.numel():
                self.largest = max(self.largest, float(value.abs().max()))
        return value


def _difference(
    results: list[torch.Tensor], expected: list[torch.Tensor], allowed: list[float]
) -> str | None:
    for index, (result, reference) in enumerate(zip(results, expected, strict=True)):
        left = result.detach().cpu()
        if (left.dtype, left.shape) != (reference.dtype, reference.shape):
            return (
                f"result {index}: {left.dtype} {tuple(left.shape)}, eager has {reference.dtype} "
                f"{tuple(reference.shape)}"
            )
        gap = (left.double() - reference.double()).abs()
        # Written so that NaN counts as a difference.
        if gap.numel() and not float(gap.max()) <= allowed[index]:
            return (
                f"result {index}: differs by {float(gap.max()):.3g}, allowed {allowed[index]:.3g}"
            )
    return None
