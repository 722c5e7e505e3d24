"""Questions about calls of a captured graph: what they compute, apart from casts and order."""

from __future__ import annotations

from dataclasses import dataclass
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
    "stripped",
]

_aten = torch.ops.aten
ADDS = {_aten.add.Tensor, _aten.add.Scalar}
MULTIPLIES = {_aten.mul.Tensor, _aten.mul.Scalar}
_POWERS = {_aten.pow.Tensor_Scalar}


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
    if node.target in (_aten.t.default, _aten.transpose.int):
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
        return NormCall("layer", args[0], float(eps), _with(weight), bias)  # type: ignore[arg-type]
    if target is _aten.rms_norm.default:
        weight = args[2] if len(args) > 2 else None
        eps = args[3] if len(args) > 3 else None
        if eps is None:
            eps = torch.finfo(torch.float32).eps
        return NormCall("rms", args[0], float(eps), _with(weight))  # type: ignore[arg-type]
    if target not in MULTIPLIES:
        return None
    for one, other in ((args[0], args[1]), (args[1], args[0])):
        x = stripped(other)
        weight = _offset_weight(one, graph_module)
        if weight is not None and isinstance(x, fx.Node):
            found = _plain_rms(x, graph_module)
            if found is not None:
                return NormCall("rms", *found, weight=weight)
    found = _plain_rms(node, graph_module)
    return None if found is None else NormCall("rms", *found)


def _with(weight: Any) -> tuple[fx.Node, float] | None:
    return None if weight is None else (stripped(weight), 0.0)


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


def _plain_rms(node: fx.Node, graph_module: fx.GraphModule) -> tuple[fx.Node, float] | None:
    """Returns x and eps of x / sqrt(mean(x^2) + eps); None for anything else."""
    if node.target not in MULTIPLIES:
        return None
    for one, other in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
        root, x = stripped(other), stripped(one)
        if not isinstance(root, fx.Node) or not isinstance(x, fx.Node):
            continue
        inside = _inside_root(root)
        if inside is None or inside.target not in ADDS:
            continue
        eps = scalar(inside.args[1], graph_module)
        mean = stripped(inside.args[0])
        if eps is None or not isinstance(mean, fx.Node) or mean.target is not _aten.mean.dim:
            continue
        square = stripped(mean.args[0])
        dims = mean.args[1]
        last = len(mean.meta["val"].shape) - 1
        if list(dims) not in ([-1], [last]):  # type: ignore[arg-type]
            continue
        if isinstance(square, fx.Node) and _squared(square) is x:
            return x, eps
    return None


def _inside_root(node: fx.Node) -> fx.Node | None:
    """Returns what 1 / sqrt is taken of."""
    power: Any = node.args[1] if node.target in _POWERS else None
    if node.target is not _aten.rsqrt.default and power != -0.5:
        return None
    found = stripped(node.args[0])
    return found if isinstance(found, fx.Node) else None


def _squared(node: fx.Node) -> Any:
    """Returns what a node is the square of."""
    is_square = (
        node.target is _aten.square.default
        or (node.target in _POWERS and node.args[1] == 2)
        or (node.target in MULTIPLIES and node.args[0] is node.args[1])
    )
    return stripped(node.args[0]) if is_square else None
