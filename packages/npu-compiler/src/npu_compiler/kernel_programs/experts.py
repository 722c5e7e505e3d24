"""Mixtures of experts: the calls by which a captured step multiplies rows by chosen weights."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from npu_compiler.kernel_programs.activations import ACTIVATIONS
from npu_compiler.kernel_programs.calls import MULTIPLIES, stripped
from npu_compiler.kernel_programs.views import is_moving
from npu_ops.kernel_programs.instructions import Activation

__all__ = ["ExpertsCall", "experts_call"]

_aten = torch.ops.aten
_SUM = _aten.sum.dim_IntList


@dataclass(frozen=True)
class ExpertsCall:
    """The sum over chosen experts of share * down(activation(gate(x)) * up(x)).

    Attributes:
        x: the rows.
        scores: the router's (rows, experts), before they are made shares.
        gate_up: name of a parameter (experts, 2 * inner, inputs), gates first.
        down: name of a parameter (experts, outputs, inner).
        experts: how many there are.
        chosen: how many each row has.
        shares: see npu_ops.kernel_programs.instructions.Experts.
        activation: of the gate.
    """

    x: fx.Node
    scores: fx.Node
    gate_up: str
    down: str
    experts: int
    chosen: int
    shares: Literal["softmax", "softmax_normalized"]
    activation: Activation


def experts_call(node: fx.Node) -> ExpertsCall | None:
    """Returns the mixture of experts that ends at a node; None if none does."""
    if node.target is not _SUM or list(node.args[1]) != [1]:  # type: ignore[arg-type]
        return None
    weighted = _moved_from(node.args[0])
    if weighted is None or weighted.target not in MULTIPLIES:
        return None
    product, part = _moved_from(weighted.args[0]), stripped(weighted.args[1])
    last = _chosen_product(product)
    if last is None:
        return None
    opened = _moved_from(last[2])
    if opened is None or opened.target not in MULTIPLIES:
        return None
    gate, up = stripped(opened.args[0]), stripped(opened.args[1])
    find = ACTIVATIONS.get(gate.target)
    activation = None if find is None else find(gate)
    first = _chosen_product(_moved_from(up))
    if activation is None or first is None:
        return None
    halves = _half(stripped(gate.args[0])), _half(up)
    if halves[0] is None or halves[1] is None or halves[0][1:] != (0,) or halves[1][1:] != (1,):
        return None
    if halves[0][0] is not halves[1][0] or first[1] is not last[1]:
        return None
    return _with_shares(first, last, part, activation)


def _with_shares(
    first: tuple[fx.Node, fx.Node, Any],
    last: tuple[fx.Node, fx.Node, Any],
    part: Any,
    activation: Activation,
) -> ExpertsCall | None:
    """Returns the call if its shares are those of a softmax."""
    top = first[1]
    while is_moving(part) and part.target is not operator.getitem:
        part = stripped(part.args[0])
    shares: Literal["softmax", "softmax_normalized"] = "softmax"
    if part.target is _aten.div.Tensor:
        total = stripped(part.args[1])
        part = stripped(part.args[0])
        if total.target is not _SUM or stripped(total.args[0]) is not part:
            return None
        shares = "softmax_normalized"
    if part.target is not operator.getitem or part.args != (top, 0):
        return None
    softmax, x = stripped(top.args[0]), _moved_from(first[2])
    chosen: Any = top.args[1]
    if softmax.target is not _aten.softmax.int or x is None:
        return None
    return ExpertsCall(
        x=x,
        scores=stripped(softmax.args[0]),
        gate_up=str(first[0].target),
        down=str(last[0].target),
        experts=int(first[0].meta["val"].shape[0]),
        chosen=int(chosen),
        shares=shares,
        activation=activation,
    )


def _chosen_product(node: fx.Node | None) -> tuple[fx.Node, fx.Node, Any] | None:
    """Returns the parameter, the choice and the other factor of chosen weights times rows."""
    if node is None or node.target is not _aten.bmm.default:
        return None
    weights, rows = stripped(node.args[0]), node.args[1]
    if not isinstance(weights, fx.Node) or weights.target is not _aten.index.Tensor:
        return None
    parameter, indices = stripped(weights.args[0]), weights.args[1]
    choice = stripped(indices[0])  # type: ignore[index]
    while is_moving(choice) and choice.target is not operator.getitem:
        choice = stripped(choice.args[0])
    if parameter.op != "get_attr" or choice.target is not operator.getitem:
        return None
    top = choice.args[0]
    if top.target is not _aten.topk.default or choice.args[1] != 1 or len(indices) != 1:  # type: ignore[arg-type]
        return None
    return parameter, top, rows


def _half(node: Any) -> tuple[fx.Node, int] | None:
    """Returns what a node is a half of, and which half."""
    if not isinstance(node, fx.Node) or node.target is not operator.getitem:
        return None
    split: Any = node.args[0]
    if split.target is not _aten.chunk.default or split.args[1] != 2:
        return None
    return split, node.args[1]  # type: ignore[return-value]


def _moved_from(node: Any) -> fx.Node | None:
    """Returns the value whose elements a node shows."""
    node = stripped(node)
    while isinstance(node, fx.Node) and is_moving(node):
        node = stripped(node.args[0])
    return node if isinstance(node, fx.Node) else None
