"""Questions about calls of a captured graph: what they compute, apart from casts and order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import fx

from npu_compiler.kernel_programs.views import is_cast

__all__ = [
    "ADDS",
    "MULTIPLIES",
    "LinearCall",
    "NormCall",
    "linear_call",
    "norm_call",
    "scalar",
    "squared_of",
    "stripped",
]

_aten = torch.ops.aten
ADDS = {_aten.add.Tensor, _aten.add.Scalar}
MULTIPLIES = {_aten.mul.Tensor, _aten.mul.Scalar}
_POWERS = {_aten.pow.Tensor_Scalar}
_TURNS = {_aten.t.default, _aten.transpose.int, _aten.numpy_T.default}


def stripped(node: Any) -> Any:
    """Returns what a value was before it was cast."""
    while isinstance(node, fx.Node) and is_cast(node):
        node = node.args[0]
    return node


def scalar(value: Any, graph_module: fx.GraphModule) -> float | None:
    """Returns the number that an argument is, also as a constant tensor of one element; or None."""
    value = stripped(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, fx.Node) and value.op == "get_attr":
        tensor = getattr(graph_module, str(value.target))
        if tensor.numel() == 1 and not isinstance(tensor, torch.nn.Parameter):
            return float(tensor)
    return None


@dataclass(frozen=True)
class LinearCall:
    """x weight^T + bias.

    Attributes:
        x: the input.
        weight: name of the parameter.
        is_transposed: whether it is (inputs, outputs).
        bias: its node; None for none.
    """

    x: fx.Node
    weight: str
    is_transposed: bool
    bias: fx.Node | None


def linear_call(node: fx.Node) -> LinearCall | None:
    """Returns a product with a parameter; None if a node is none."""
    target, args = node.target, node.args
    bias: Any = None
    if target is _aten.linear.default:
        x, weight = args[0], args[1]
        bias = args[2] if len(args) > 2 else None
        is_transposed = False
    elif target is _aten.addmm.default and not node.kwargs:
        bias, x, weight = args[0], args[1], args[2]
        is_transposed = True
    elif target in (_aten.mm.default, _aten.matmul.default):
        x, weight = args[0], args[1]
        is_transposed = True
    else:
        return None
    found = _matrix(weight)
    if found is None or not isinstance(x, fx.Node):
        return None
    name, is_turned = found
    return LinearCall(x, name, is_transposed != is_turned, bias)


def _matrix(node: Any) -> tuple[str, bool] | None:
    """Returns the name of a parameter with two dimensions, and whether it is transposed."""
    node = stripped(node)
    if not isinstance(node, fx.Node):
        return None
    if node.target in _TURNS:
        found = _matrix(node.args[0])
        return None if found is None else (found[0], not found[1])
    if node.op == "get_attr" and len(node.meta["val"].shape) == 2:
        return str(node.target), False
    return None


@dataclass(frozen=True)
class NormCall:
    """A normalization over the last dimension.

    Attributes:
        kind: "rms" or "layer".
        x: what is normalized.
        eps: added before the root.
        weight: its node, and what is added to it; None for ones.
        bias: its node; None for zeros.
    """

    kind: Literal["rms", "layer"]
    x: fx.Node
    eps: float
    weight: tuple[fx.Node, float] | None = None
    bias: fx.Node | None = None


def norm_call(node: fx.Node, graph_module: fx.GraphModule) -> NormCall | None:
    """Returns the normalization that ends at a node; None if none does."""
    target, args = node.target, node.args
    if target is _aten.layer_norm.default:
        if len(args[1]) != 1:  # type: ignore[arg-type]
            return None
        weight = args[2] if len(args) > 2 else None
        bias = args[3] if len(args) > 3 else None
        eps = args[4] if len(args) > 4 else node.kwargs.get("eps", 1e-5)
        return NormCall("layer", args[0], float(eps), _with(weight, graph_module), bias)  # type: ignore[arg-type]
    if target is _aten.rms_norm.default:
        weight = args[2] if len(args) > 2 else None
        eps = args[3] if len(args) > 3 else None
        if eps is None:
            eps = torch.finfo(torch.float32).eps
        return NormCall("rms", args[0], float(eps), _with(weight, graph_module))  # type: ignore[arg-type]
    if target in MULTIPLIES:
        for one, other in ((args[0], args[1]), (args[1], args[0])):
            x = stripped(other)
            weight = _offset_weight(one, graph_module)
            if weight is not None and isinstance(x, fx.Node):
                found = _plain_norm(x, graph_module)
                if found is not None:
                    return replace(found, weight=weight)
    return _plain_norm(node, graph_module)


def _with(weight: Any, graph_module: fx.GraphModule) -> tuple[fx.Node, float] | None:
    if weight is None:
        return None
    return _offset_weight(weight, graph_module) or (stripped(weight), 0.0)


def _offset_weight(node: Any, graph_module: fx.GraphModule) -> tuple[fx.Node, float] | None:
    """Returns a vector parameter and what is added to it; None for anything else."""
    node = stripped(node)
    if not isinstance(node, fx.Node):
        return None
    if node.op == "get_attr":
        return (node, 0.0) if len(node.meta["val"].shape) == 1 else None
    if node.target in ADDS:
        for one, other in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
            number = scalar(other, graph_module)
            weight = stripped(one)
            if number is not None and isinstance(weight, fx.Node) and weight.op == "get_attr":
                return weight, number
    return None


def _plain_norm(node: fx.Node, graph_module: fx.GraphModule) -> NormCall | None:
    """Returns x / sqrt(mean(x^2) + eps), or the same of x - mean(x); None for anything else."""
    if node.target in MULTIPLIES:
        sides = [node.args[:2], node.args[1::-1]]
    else:
        sides = [node.args[:2]] if node.target is _aten.div.Tensor else []
    for one, other in sides:
        root, x = stripped(other), stripped(one)
        if not isinstance(root, fx.Node) or not isinstance(x, fx.Node):
            continue
        inside = _inside_root(root, is_inverse=node.target in MULTIPLIES)
        if inside is None or inside.target not in ADDS:
            continue
        eps = scalar(inside.args[1], graph_module)
        mean = stripped(inside.args[0])
        if eps is None or not isinstance(mean, fx.Node):
            continue
        centered = _centered(x)
        square = _mean_of(mean)
        if square is not None and _is_same_rows(squared_of(square), x):
            if centered is not None:
                return NormCall("layer", centered, eps)
            return NormCall("rms", x, eps)
    return None


def _mean_of(node: Any) -> fx.Node | None:
    """Returns what a node is the mean of over the last dimension, which stays."""
    node = stripped(node)
    if not isinstance(node, fx.Node) or node.target is not _aten.mean.dim:
        return None
    dims: Any = node.args[1]
    last = len(node.meta["val"].shape) - 1
    keeps = len(node.args) > 2 and bool(node.args[2])
    found = stripped(node.args[0])
    return found if keeps and list(dims) in ([-1], [last]) else None


def _centered(node: fx.Node) -> fx.Node | None:
    """Returns x if a node is x - mean(x); None otherwise."""
    if node.target is not _aten.sub.Tensor or len(node.args) > 2 or node.kwargs:
        return None
    x = stripped(node.args[0])
    return x if isinstance(x, fx.Node) and _mean_of(node.args[1]) is x else None


def _is_same_rows(one: Any, other: fx.Node) -> bool:
    """Whether two nodes are the same, or both the same rows less their mean."""
    if one is other:
        return True
    if not isinstance(one, fx.Node):
        return False
    x = _centered(one)
    return x is not None and x is _centered(other)


def _inside_root(node: fx.Node, *, is_inverse: bool) -> fx.Node | None:
    """Returns what a root is taken of, or 1 / root."""
    power: Any = node.args[1] if node.target in _POWERS else None
    root = _aten.rsqrt.default if is_inverse else _aten.sqrt.default
    if node.target is not root and power != (-0.5 if is_inverse else 0.5):
        return None
    found = stripped(node.args[0])
    return found if isinstance(found, fx.Node) else None


def squared_of(node: fx.Node) -> Any:
    """Returns what a node is the square of; None if it is none."""
    is_square = (
        node.target is _aten.square.default
        or (node.target in _POWERS and node.args[1] == 2)
        or (node.target in MULTIPLIES and node.args[0] is node.args[1])
    )
    return stripped(node.args[0]) if is_square else None
