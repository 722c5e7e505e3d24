"""Derives rows of a graph of tensors: equal runs of elements that calls do not mix."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.kernel_programs.evaluation import no_kernel

__all__ = ["BATCH_NORM", "NORMS", "PRODUCTS", "GraphSize", "derive_rows", "graph_size"]

_aten = torch.ops.aten
_npu = torch.ops.npu

PRODUCTS: Mapping[Any, str] = {
    _aten.linear.default: "linear",
    _npu.linear_relu.default: "linear",
    _npu.linear_gelu.default: "linear",
    _aten.addmm.default: "addmm",
    _npu.addmm_relu.default: "addmm",
    _aten.mm.default: "mm",
    _aten.matmul.default: "mm",
}
NORMS = (
    _aten.layer_norm.default,
    _aten.native_layer_norm.default,
    _aten.rms_norm.default,
    _npu.rms_norm.default,
)
BATCH_NORM = _aten._native_batch_norm_legit_no_training.default


@dataclass(frozen=True)
class GraphSize:
    """Amount of computation in a graph.

    Attributes:
        rows: number of rows of its first product or norm, or else of its result.
        multiplications: number of multiplications in its products.
    """

    rows: int
    multiplications: int


def graph_size(graph: fx.Graph) -> GraphSize | None:
    """Returns the amount of computation in a graph; None for dynamic shapes."""
    rows, multiplications = 0, 0
    for node in graph.nodes:
        if not _is_static(node.meta.get("val")):
            return None
        if node.target in PRODUCTS or node.target in NORMS:
            x = _operand(node).meta["val"]
            rows = rows or _leading(x)
            if node.target in PRODUCTS:
                width = x.shape[-1] if x.dim() else 1
                multiplications += node.meta["val"].numel() * width
    if not rows:
        results = torch.utils._pytree.tree_leaves(graph.output_node().args[0])
        values = [one.meta["val"] for one in results if isinstance(one, fx.Node)]
        rows = max((_leading(value) for value in values), default=0)
    return GraphSize(rows, multiplications)


def derive_rows(graph: fx.Graph, constants: Container[str]) -> int:
    """Returns the number of rows of each tensor in a graph.

    Rows are equal runs of a tensor's elements in order. A vector is a run along the last dimension.
    In a product each vector is one row. In a graph without products a row may have several vectors:
    the count is the greatest common divisor of the numbers of vectors. Lowering must check that
    calls do not mix rows.

    Args:
        graph: graph of tensors with fixed shapes.
        constants: names of placeholders that are weights.

    Returns:
        The number of rows; 0 if no result depends on the inputs.

    Raises:
        LoweringError: [no-kernel] if products have different numbers of vectors, or a tensor cannot
            be divided into the rows.
    """
    computed = {
        node: value
        for node in _computed(graph, constants)
        # Reading an element of a tuple is a call as well.
        if isinstance(value := node.meta.get("val"), torch.Tensor)
    }
    owner: fx.Node | None = None
    count = 0
    for node in computed:
        if node.target in PRODUCTS or node.target is BATCH_NORM:
            found = _leading(_operand(node).meta["val"])
            if owner is not None and found != count:
                raise no_kernel(node, f"takes {found} rows, where {owner.name} takes {count}")
            owner, count = node, found
    if owner is None:
        return math.gcd(*map(_leading, computed.values()))
    for node, value in computed.items():
        if count == 0 or value.numel() % count:
            reason = f"has {value.numel()} elements, where {owner.name} takes {count} rows"
            raise no_kernel(node, reason)
    return count


def _computed(graph: fx.Graph, constants: Container[str]) -> Iterator[fx.Node]:
    """Yields the inputs and calls from which results are computed, without constants."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in needed:
            needed.update(node.all_input_nodes)
    varying: set[fx.Node] = set()
    for node in graph.nodes:
        is_input = node.op == "placeholder" and node.name not in constants
        is_call = node.op == "call_function" and any(one in varying for one in node.all_input_nodes)
        if is_input or is_call:
            varying.add(node)
            if node in needed:
                yield node


def _operand(node: fx.Node) -> fx.Node:
    """Returns the operand of a product or norm with the row vectors."""
    operand = node.args[1 if PRODUCTS.get(node.target) == "addmm" else 0]
    assert isinstance(operand, fx.Node)
    return operand


def _is_static(value: Any) -> bool:
    values = value if isinstance(value, (tuple, list)) else (value,)
    tensors = [one for one in values if isinstance(one, torch.Tensor)]
    return all(type(size) is int for one in tensors for size in one.shape)


def _leading(value: torch.Tensor) -> int:
    """Returns a tensor's number of vectors along the last dimension."""
    width = value.shape[-1] if value.dim() else 1
    return int(value.numel()) // max(int(width), 1)
