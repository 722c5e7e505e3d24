"""Decompositions of complex numbers into pairs, and of convolution gradients."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch.utils import _pytree as pytree

from npu_compiler.graph.complex_numbers import RULES, Pairs, StaysComplex
from npu_compiler.graph.nodes import add_call, inlined, is_call, is_static
from npu_compiler.passes.infra.pass_base import Facts, GraphPass

__all__ = ["OpenComplexNumbers", "SeparateConvolutionGradients", "convolution_backward"]

aten = torch.ops.aten


@dataclass(frozen=True)
class OpenComplexNumbers(GraphPass):
    """Replaces complex calls that have a rule, and adds views as complex numbers for others."""

    name = "open_complex_numbers"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        pairs: dict[fx.Node, fx.Node] = {}
        found = [node for node in graph.nodes if _has_rule(node) and not facts.is_kept(node)]
        count = sum(_open(graph, node, pairs) for node in found)
        if count:
            graph.eliminate_dead_code()
        return count


def _has_rule(node: fx.Node) -> bool:
    """Whether a call uses complex64, without wider numbers, and static sizes."""
    if node.op != "call_function" or node.target not in RULES:
        return False
    nodes = (node, *node.all_input_nodes)
    if not all(is_static(one) for one in nodes):
        return False
    dtypes = {one.meta["val"].dtype for one in nodes}
    return torch.complex64 in dtypes and not dtypes & {torch.complex128, torch.float64}


def _open(graph: fx.Graph, node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> bool:
    """Replaces a call; adds a complex result to `pairs`, for later calls."""
    sources = list(node.all_input_nodes)
    for source in sources:
        if _is_complex(source) and source not in pairs:
            pairs[source] = _as_pairs(graph, node, source)
    place_of = {source: place for place, source in enumerate(sources)}

    def on_pairs(*tensors: torch.Tensor) -> Any:
        def value(leaf: Any) -> Any:
            if not isinstance(leaf, fx.Node):
                return leaf
            tensor = tensors[place_of[leaf]]
            return Pairs(tensor) if _is_complex(leaf) else tensor

        args = pytree.tree_map(value, list(node.args))
        kwargs = pytree.tree_map(value, dict(node.kwargs))
        result = RULES[node.target](*args, **kwargs)
        return result.value if isinstance(result, Pairs) else result

    try:
        (made,) = inlined(graph, node, on_pairs, [pairs.get(source, source) for source in sources])
    except StaysComplex:
        return False
    if _is_complex(node):
        fresh = add_call(graph, node, aten.view_as_complex.default, (made,), origin=node)
        pairs[fresh] = made
        made = fresh
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return True


def _is_complex(node: fx.Node) -> bool:
    return bool(node.meta["val"].dtype.is_complex)


def _as_pairs(graph: fx.Graph, before: fx.Node, source: fx.Node) -> fx.Node:
    """Returns a view of other complex numbers, perhaps conjugated, as pairs."""
    plain = add_call(graph, before, aten.resolve_conj.default, (source,), origin=source)
    return add_call(graph, before, aten.view_as_real.default, (plain,), origin=source)


# Other gradients depend on the gradient of the input. A program computes it, so that a backward
# graph is not split at each convolution. The converter's rule selects the gradients of a program.

_GRADIENTS = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class SeparateConvolutionGradients(GraphPass):
    """convolution_backward -> one call for the input, one for weight and bias."""

    name = "separate_convolution_gradients"
    stage = "normalize"
    kinds = frozenset({"backward"})

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        found = [
            node for node in graph.nodes if is_call(node, _GRADIENTS) and not facts.is_kept(node)
        ]
        count = 0
        for node in found:
            is_of_input, *others = cast("Sequence[bool]", node.args[-1])
            if is_of_input and any(others):
                _separate(graph, node, others)
                count += 1
        return count


def _separate(graph: fx.Graph, node: fx.Node, others: Sequence[bool]) -> None:
    arguments = node.args[:-1]
    first = add_call(graph, node, _GRADIENTS, (*arguments, [True, False, False]), origin=node)
    rest = add_call(graph, node, _GRADIENTS, (*arguments, [False, *others]), origin=node)
    for user in list(node.users):
        assert user.target is operator.getitem
        user.replace_input_with(node, first if user.args[1] == 0 else rest)
    graph.erase_node(node)


# A program has no op for them; the converters of convolutions are used instead.


def convolution_backward(
    grad_output: torch.Tensor,
    input_: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Computes what `aten.convolution_backward` does, with its arguments.

    With y the convolution of x and w: the gradient of x is the transposed convolution of y's
    gradient and w; the gradient of w is the convolution of x and y's gradient, with channels and
    batch exchanged and stride and dilation exchanged (Dumoulin and Visin, "A guide to convolution
    arithmetic for deep learning", 2016, section 4).

    Args:
        grad_output: (batch, out_channels, *out_size).
        input_: (batch, in_channels, *size).
        weight: (out_channels, in_channels / groups, *kernel); for transposed convolutions
            (in_channels, out_channels / groups, *kernel).
        bias_sizes: not used.
        stride: one number per spatial axis, or one for all.
        padding: like stride.
        dilation: like stride.
        transposed: whether the convolution was transposed.
        output_padding: like stride, for a transposed convolution.
        groups: number of groups of channels.
        output_mask: which of the three gradients to compute.

    Returns:
        Gradients of input, weight and bias; None for those not requested.
    """
    spatial = weight.dim() - 2
    strides, pads, dilations = (_spread(v, spatial) for v in (stride, padding, dilation))
    none = [0] * spatial
    grad_input = grad_weight = grad_bias = None
    if output_mask[0] and transposed:
        grad_input = torch.ops.aten.convolution.default(
            grad_output, weight, None, strides, pads, dilations, False, none, groups
        )
        # A large output padding adds windows without an input position.
        for axis, size in enumerate(input_.shape[2:], start=2):
            grad_input = grad_input.narrow(axis, 0, size)
        grad_input = grad_input.contiguous()
    elif output_mask[0]:
        rests = [
            size - ((out - 1) * step - 2 * pad + gap * (window - 1) + 1)
            for size, out, step, pad, gap, window in zip(
                input_.shape[2:],
                grad_output.shape[2:],
                strides,
                pads,
                dilations,
                weight.shape[2:],
                strict=True,
            )
        ]
        grad_input = torch.ops.aten.convolution.default(
            grad_output, weight, None, strides, pads, dilations, True, rests, groups
        )
    if output_mask[1]:
        small, large = (input_, grad_output) if transposed else (grad_output, input_)
        grad_weight = _weight_gradient(large, small, weight, strides, pads, dilations, groups)
    if output_mask[2]:
        grad_bias = grad_output.sum([0, *range(2, grad_output.dim())])
    return grad_input, grad_weight, grad_bias


def _weight_gradient(
    large: torch.Tensor,
    small: torch.Tensor,
    weight: torch.Tensor,
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    groups: int,
) -> torch.Tensor:
    """Returns the weight gradient; windows move over `large`, one per element of `small`."""
    batch, channels, *sizes = large.shape
    per_group = channels // groups
    axes = list(range(3, 3 + len(sizes)))
    rows = large.reshape(batch, groups, per_group, *sizes).permute(2, 1, 0, *axes)
    rows = rows.reshape(per_group, groups * batch, *sizes)
    result = torch.ops.aten.convolution.default(
        rows, small.transpose(0, 1), None, dilations, pads, strides, False, [0] * len(sizes), groups
    )
    for axis, window in enumerate(weight.shape[2:], start=2):
        result = result.narrow(axis, 0, window)
    gradient: torch.Tensor = result.transpose(0, 1).contiguous()
    return gradient


def _spread(values: Sequence[int], count: int) -> list[int]:
    listed = list(values)
    return listed * count if len(listed) == 1 else listed
