"""Passes on matrix products: linear layers, their activations, joined and batched products."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.graph.nodes import add_call, is_call, is_static, sizes_of, value_of
from npu_compiler.passes.infra.pass_base import Facts, GraphPass
from npu_compiler.passes.infra.pattern import (
    FusePattern,
    Match,
    Replacement,
    anything,
    call,
    either,
)

__all__ = [
    "BatchMatmuls",
    "FuseAddmmRelu",
    "FuseLinear",
    "FuseLinearActivation",
    "FuseSwiglu",
    "MergeLinears",
]

# `linear` on a tensor of more than two axes is traced to view, mm or addmm with a transposed
# weight, and view; as one call it lowers to one node and can be fused with the next calls.

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_WEIGHT = call(aten.t.default, anything("weight"))
_FLAT = call(_VIEWS, anything("x"), anything())
_MM = call(aten.mm.default, _FLAT, _WEIGHT)
_ADDMM = call(aten.addmm.default, anything("bias"), _FLAT, _WEIGHT, keywords=True, name="product")
_PLAIN_MM = call(aten.mm.default, anything("x"), _WEIGHT)
_PLAIN_ADDMM = call(
    aten.addmm.default, anything("bias"), anything("x"), _WEIGHT, keywords=True, name="product"
)


@dataclass(frozen=True)
class FuseLinear(FusePattern):
    """view, mm or addmm with a transposed weight, view -> aten.linear."""

    name = "fuse_linear"
    stage = "normalize"
    patterns = (
        call(_VIEWS, _MM, anything()),
        call(_VIEWS, _ADDMM, anything()),
        _PLAIN_MM,
        _PLAIN_ADDMM,
    )

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        product = match.named.get("product")
        if product is not None and product.kwargs:
            return None  # beta or alpha
        x, weight, bias = match["x"], match["weight"], match.named.get("bias")
        if not _are_rows(sizes_of(x), sizes_of(match.root), sizes_of(weight)):
            return None
        if bias is not None and sizes_of(bias) != sizes_of(weight)[:1]:
            return None  # broadcast differently from linear's
        return Replacement(aten.linear.default, (x, weight, bias))


def _are_rows(given: tuple[Any, ...], result: tuple[Any, ...], weight: tuple[Any, ...]) -> bool:
    """Whether the product is over the input's last axis and keeps the others."""
    return [str(size) for size in given] == [str(size) for size in (*result[:-1], weight[1])]


# torch.ops.npu has ops for two activations: relu and gelu.


@dataclass(frozen=True)
class FuseLinearActivation(FusePattern):
    """linear, relu -> npu.linear_relu; linear, gelu -> npu.linear_gelu."""

    name = "fuse_linear_activation"
    patterns = (
        call(aten.relu.default, call(aten.linear.default, anything(), name="linear")),
        call(
            aten.gelu.default,
            call(aten.linear.default, anything(), name="linear"),
            keywords=True,
        ),
    )

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        linear = match["linear"]
        x, weight, *rest = linear.args
        args = (x, weight, rest[0] if rest else None)
        if match.root.target is aten.relu.default:
            return Replacement(torch.ops.npu.linear_relu.default, args, origin=linear)
        form = {"approximate": match.root.kwargs.get("approximate", "none")}
        return Replacement(torch.ops.npu.linear_gelu.default, args, form, origin=linear)


@dataclass(frozen=True)
class FuseAddmmRelu(FusePattern):
    """addmm, relu -> npu.addmm_relu, for products without a transposed weight."""

    name = "fuse_addmm_relu"
    patterns = (
        call(aten.relu.default, call(aten.addmm.default, anything(), keywords=True, name="addmm")),
    )

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        addmm = match["addmm"]
        beta, alpha = addmm.kwargs.get("beta", 1), addmm.kwargs.get("alpha", 1)
        scales = {"beta": beta, "alpha": alpha}
        return Replacement(torch.ops.npu.addmm_relu.default, addmm.args, scales, origin=addmm)


_GATE = anything("gate")
_SILU = either(
    call(aten.silu.default, _GATE),
    call(aten.mul.Tensor, _GATE, call(aten.sigmoid.default, _GATE), commutes=True),
)


@dataclass(frozen=True)
class FuseSwiglu(FusePattern):
    """silu(gate) * up -> npu.swiglu.

    Source: Shazeer, GLU Variants Improve Transformer, arXiv 2002.05202.
    """

    name = "fuse_swiglu"
    patterns = (call(aten.mul.Tensor, _SILU, anything("up"), commutes=True),)

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        gate, up = match["gate"], match["up"]
        if not isinstance(up, torch.fx.Node) or sizes_of(gate) != sizes_of(up):
            return None
        if value_of(gate).dtype != value_of(up).dtype:
            return None
        return Replacement(torch.ops.npu.swiglu.default, (gate, up))


# Weights must be constants of the program, so that joining them costs nothing at run time. The
# parts of the joined result are copies, which cost more than the CPU plugin gains for products of a
# few hundred rows (1 to 4 % slower on BERT and Llama). So this runs only on request, or if measured
# faster.


@dataclass(frozen=True)
class MergeLinears(GraphPass):
    """Horizontal fusion: linear(x, a), linear(x, b) -> parts of linear(x, [a; b])."""

    name = "merge_linears"
    stage = "fuse"
    kinds = frozenset({"inference"})
    by_default = False

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        groups: dict[Any, list[fx.Node]] = defaultdict(list)
        for node in graph.nodes:
            if facts.is_kept(node) or not is_call(node, aten.linear.default):
                continue
            if _has_constant_weights(node, facts):
                weight = value_of(node.args[1])
                has_bias = len(node.args) > 2 and node.args[2] is not None
                groups[node.args[0], weight.dtype, has_bias].append(node)
        found = [nodes for nodes in groups.values() if len(nodes) > 1]
        for nodes in found:
            _merge(graph, nodes)
        return len(found)


def _has_constant_weights(node: fx.Node, facts: Facts) -> bool:
    weights = [part for part in node.args[1:3] if part is not None]
    return all(
        isinstance(part, fx.Node)
        and part.op == "placeholder"
        and part.name in facts.constants
        and is_static(part)
        for part in weights
    )


def _merge(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    first = nodes[0]
    x = first.args[0]
    weights = [node.args[1] for node in nodes]
    has_bias = len(first.args) > 2 and first.args[2] is not None
    # All arguments are graph inputs except x, which precedes its first reader.
    weight = add_call(graph, first, aten.cat.default, (weights, 0), origin=first)
    bias = None
    if has_bias:
        biases = [node.args[2] for node in nodes]
        bias = add_call(graph, first, aten.cat.default, (biases, 0), origin=first)
    whole = add_call(graph, first, aten.linear.default, (x, weight, bias), origin=first)
    start = 0
    for node in nodes:
        width = sizes_of(node.args[1])[0]  # type: ignore[arg-type]
        axis = value_of(whole).dim() - 1
        part = add_call(
            graph, first, aten.slice.Tensor, (whole, axis, start, start + width), origin=node
        )
        # Contiguous, like the layer's result, so that views of it stay valid.
        copy = add_call(
            graph, first, aten.clone.default, (part,), origin=node,
            memory_format=torch.contiguous_format,
        )  # fmt: skip
        node.replace_all_uses_with(copy)
        start += width
    for node in nodes:
        graph.erase_node(node)


# Each of many small products, as in experts or branches, costs a device call.


@dataclass(frozen=True)
class BatchMatmuls(GraphPass):
    """mm(a, b), mm(c, d), ... -> parts of bmm([a, c], [b, d])."""

    min_count: int = 3  # fewer products are not batched
    # Limit of one left factor; a large product is worth a separate call, and its copy is not.
    max_elements: int = 1 << 14

    name = "batch_matmuls"
    stage = "fuse"
    kinds = frozenset({"inference"})

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        groups: dict[Any, list[fx.Node]] = defaultdict(list)
        for node in graph.nodes:
            if self._fits(node, facts):
                left, right = node.args
                groups[sizes_of(left), sizes_of(right), value_of(left).dtype].append(node)
        count = 0
        for nodes in groups.values():
            for part in _independent(nodes):
                if len(part) >= self.min_count:
                    _batch(graph, part)
                    count += 1
        return count

    def _fits(self, node: fx.Node, facts: Facts) -> bool:
        if not is_call(node, aten.mm.default) or facts.is_kept(node):
            return False
        left, right = node.args
        if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
            return False
        is_small = is_static(left) and value_of(left).numel() <= self.max_elements
        return is_small and is_static(right) and _is_constant(right, facts)


def _is_constant(node: fx.Node, facts: Facts) -> bool:
    """Whether a factor is a weight, which costs nothing to stack at run time."""
    while is_call(node, aten.t.default) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.op == "placeholder" and node.name in facts.constants


def _independent(nodes: list[fx.Node]) -> list[list[fx.Node]]:
    """Returns groups of products that do not depend on each other."""
    groups: list[tuple[list[fx.Node], set[fx.Node]]] = []
    for node in nodes:
        before = _ancestors(node)
        for members, _ in groups:
            if not before & set(members):
                members.append(node)
                break
        else:
            groups.append(([node], before))
    return [members for members, _ in groups]


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(node.all_input_nodes)
    while stack:
        current = stack.pop()
        if current not in found:
            found.add(current)
            stack.extend(current.all_input_nodes)
    return found


def _batch(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    last = nodes[-1]
    stacked = [
        add_call(graph, last, aten.stack.default, ([n.args[side] for n in nodes],), origin=last)
        for side in (0, 1)
    ]
    whole = add_call(graph, last, aten.bmm.default, tuple(stacked), origin=last)
    end = last
    for index, node in enumerate(nodes):
        part = add_call(graph, last, aten.select.int, (whole, 0, index), origin=node)
        node.replace_all_uses_with(part)
        end = part
    for node in nodes:
        graph.erase_node(node)
    _sort_after(graph, end)


def _sort_after(graph: fx.Graph, end: fx.Node) -> None:
    """Moves calls before a node that depend on a later value to after the node."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    late = [
        node
        for node in graph.nodes
        if place[node] < place[end] and any(place[s] > place[node] for s in node.all_input_nodes)
    ]
    moved = set(late)
    # Calls that depend on a moved call move as well.
    for node in graph.nodes:
        if place[node] < place[end] and any(source in moved for source in node.all_input_nodes):
            moved.add(node)
    target = end
    for node in list(graph.nodes):
        if node in moved:
            target.append(node)
            target = node
