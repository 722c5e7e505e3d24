"""Matches calls of a step: views, activations, linear layers and norms."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import fx

from npu_compiler.kernel_programs.evaluation import Case, Evaluator, Step, refused
from npu_ops.kernel_programs.program import Activation
from npu_ops.kernel_programs.reference import ACTIVATIONS as FORMULAS

__all__ = [
    "ACTIVATIONS",
    "ADDS",
    "MULTIPLIES",
    "LinearCall",
    "Mover",
    "NormCall",
    "View",
    "arranged",
    "find_activation",
    "is_cast",
    "is_moving",
    "linear_call",
    "norm_call",
    "other_rows",
    "rows_first",
    "scalar",
    "squared_of",
    "stripped",
]

# Calls that only move elements (view, transpose, slice, expand, ...) are executed on row and column
# numbers. So they need no rules, and calls that mix rows are detected.

_aten = torch.ops.aten
_CASTS = {
    _aten.to.dtype,
    _aten.to.device,
    _aten.to.dtype_layout,
    _aten.to.other,
    _aten._to_copy.default,
    _aten.type_as.default,
    _aten.contiguous.default,
    _aten.clone.default,
    _aten.alias.default,
    _aten.detach.default,
    _aten.lift_fresh_copy.default,
    _aten.dropout.default,
}
_MOVES = {
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.reshape.default,
    _aten.transpose.int,
    _aten.permute.default,
    _aten.t.default,
    _aten.unsqueeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.swapaxes.default,
    _aten.slice.Tensor,
    _aten.narrow.default,
    _aten.select.int,
    _aten.expand.default,
    _aten.broadcast_to.default,
    _aten.repeat.default,
    _aten.flatten.using_ints,
    _aten.unflatten.int,
    _aten.split.Tensor,
    _aten.split_with_sizes.default,
    _aten.chunk.default,
    _aten.unbind.int,
    _aten.movedim.int,
    _aten.repeat_interleave.self_int,
    operator.getitem,
}
# These use only the shape of their second argument.
_LIKE_OTHERS = {_aten.view_as.default, _aten.expand_as.default, _aten.reshape_as.default}
_MOVES |= _LIKE_OTHERS
_ROW_ROLES = {"batch", "tokens", "kept", "rows", "kept rows"}
_CASE = Case()


@dataclass(frozen=True)
class View:
    """A node's view of a draft's value: int64 columns for its dimensions that are not rows."""

    value: int
    columns: torch.Tensor

    @property
    def flat(self) -> list[int]:
        """The columns in order."""
        result: list[int] = self.columns.flatten().tolist()
        return result

    @property
    def run(self) -> tuple[int, int] | None:
        """Returns the first column and the number of columns if consecutive; else None."""
        flat = self.columns.flatten()
        first, count = int(flat[0]), flat.numel()
        if torch.equal(flat, torch.arange(first, first + count)):
            return first, count
        return None

    @property
    def is_repeated(self) -> bool:
        """Whether a column occurs more than once."""
        return len(set(self.flat)) < self.columns.numel()


def other_rows(roles: Sequence[str | int]) -> str:
    """Returns the reason to refuse a call with dimensions in its result that rows do not have."""
    if "all" in roles and "?" not in roles:
        return (
            "computes with the cache of all tokens outside of attention, as latent keys and an "
            "indexer do"
        )
    return f"has a dimension of another kind, {roles}"


def is_cast(node: fx.Node) -> bool:
    """Whether a call changes at most the dtype or the memory layout of its first argument."""
    if node.target is _aten.dropout.default:
        return not node.args[2]
    if node.op != "call_function" or node.target not in _CASTS:
        return False
    before, after = node.args[0].meta["val"].dtype, node.meta["val"].dtype  # type: ignore[union-attr]
    return bool(after.is_floating_point or not before.is_floating_point)


def is_moving(node: fx.Node) -> bool:
    """Whether a call only moves elements of its first argument."""
    if node.target is _aten.index.Tensor:
        return all(index is None or _is_constant(index) for index in node.args[1])  # type: ignore[union-attr]
    return node.op == "call_function" and (node.target in _MOVES or is_cast(node))


def _is_constant(node: Any) -> bool:
    while is_cast(node):
        node = node.args[0]
    return bool(node.op == "get_attr")


class Mover:
    """Tracks columns through calls that move elements."""

    def __init__(self, graph_module: fx.GraphModule, step: Step) -> None:
        self._step = step
        self._evaluator = Evaluator(graph_module, step, _CASE)

    def moved(self, node: fx.Node, source: fx.Node, view: View) -> View:
        """Returns a moving call's view of its source; a split and its getitem count as one call.

        Raises [not-row-wise] if elements move from one row to another.
        """
        width = int(view.columns.max()) + 1
        rows = self._rows(self._step.roles(source))
        elements = torch.arange(rows.numel()).view(*rows.shape, *[1] * view.columns.dim())
        numbers = elements * width + view.columns
        given = self._evaluator.closed(arranged(numbers, self._step.roles(source)), source)
        split = node.args[0]
        if node.target is operator.getitem and isinstance(split, fx.Node) and split is not source:
            parts = self._evaluator.call(split, {source: given})
            result = parts[node.args[1]]
        else:
            others: Any = node.args[1:2] if node.target in _LIKE_OTHERS else ()
            shapes = {one: self._evaluator.empty(one) for one in others}
            result = self._evaluator.call(node, {**shapes, source: given})
        roles = self._step.roles(node)
        if "?" in roles or "all" in roles:
            raise refused(node, other_rows(roles))
        by_row = rows_first(self._evaluator.opened(result, node), roles)
        lead = self._rows(roles).numel()
        by_row = by_row.reshape(lead, *by_row.shape[self._lead(roles) :])
        expected = torch.arange(lead).view(-1, *[1] * (by_row.dim() - 1)).expand_as(by_row)
        columns = by_row[0] % width
        is_kept = lead == rows.numel() and torch.equal(by_row // width, expected)
        if not is_kept or not torch.equal(by_row % width, columns.expand_as(by_row)):
            raise refused(node, "moves elements from one token to another")
        return View(view.value, columns)

    def _rows(self, roles: Sequence[str | int]) -> torch.Tensor:
        """Returns an empty tensor with the shape of the row dimensions."""
        sizes = {
            "batch": _CASE.batch,
            "tokens": _CASE.tokens,
            "kept": _CASE.kept,
            "rows": _CASE.batch * _CASE.tokens,
            "kept rows": _CASE.batch * _CASE.kept,
        }
        return torch.empty([sizes[role] for role in roles if isinstance(role, str)])

    @staticmethod
    def _lead(roles: Sequence[str | int]) -> int:
        return sum(role in _ROW_ROLES for role in roles)


def rows_first(tensor: torch.Tensor, roles: Sequence[str | int]) -> torch.Tensor:
    """Moves a tensor's row dimensions to the front, batch before tokens."""
    return tensor.permute(_order(roles))


def arranged(tensor: torch.Tensor, roles: Sequence[str | int]) -> torch.Tensor:
    """Reverses rows_first: returns a tensor in the dimension order of a node's roles."""
    order = _order(roles)
    return tensor.permute([order.index(dim) for dim in range(len(order))])


def _order(roles: Sequence[str | int]) -> list[int]:
    ranks: dict[Any, int] = {"batch": 0, "rows": 0, "kept rows": 0, "tokens": 1, "kept": 1}
    rows = [dim for dim, role in enumerate(roles) if role in ranks]
    rows.sort(key=lambda dim: ranks[roles[dim]])
    return rows + [dim for dim, role in enumerate(roles) if role not in ranks]


def _gelu(node: fx.Node) -> Activation | None:
    kind = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none")
    return {"none": "gelu", "tanh": "gelu_tanh"}.get(str(kind))  # type: ignore[return-value]


ACTIVATIONS: dict[Any, Callable[[fx.Node], Activation | None]] = {
    _aten.relu.default: lambda node: "relu",
    _aten.gelu.default: _gelu,
    _aten.silu.default: lambda node: "silu",
    _aten.sigmoid.default: lambda node: "sigmoid",
    _aten.tanh.default: lambda node: "tanh",
}


def find_activation(compute: Callable[[torch.Tensor], torch.Tensor]) -> Activation | None:
    """Returns the activation that equals an elementwise function, or None."""
    x = torch.cat([torch.linspace(-12, 12, 997), torch.tensor([-60.0, -1e-4, 0.0, 1e-4, 60.0])])
    found = compute(x)
    for name, formula in FORMULAS.items():
        if torch.allclose(found, formula(x), atol=2e-6, rtol=2e-6):
            return name
    return None


ADDS = {_aten.add.Tensor, _aten.add.Scalar}
MULTIPLIES = {_aten.mul.Tensor, _aten.mul.Scalar}
_POWERS = {_aten.pow.Tensor_Scalar}
_TURNS = {_aten.t.default, _aten.transpose.int, _aten.numpy_T.default}


def stripped(node: Any) -> Any:
    """Returns a value before casts."""
    while isinstance(node, fx.Node) and is_cast(node):
        node = node.args[0]
    return node


def scalar(value: Any, graph_module: fx.GraphModule) -> float | None:
    """Returns an argument as number, also from a constant tensor of one element, or None."""
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
    """x weight^T, plus an optional bias; the weight by name, (inputs, outputs) if transposed."""

    x: fx.Node
    weight: str
    is_transposed: bool
    bias: fx.Node | None


def linear_call(node: fx.Node) -> LinearCall | None:
    """Returns a node's product with a parameter, or None."""
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
    """A normalization over the last dimension."""

    kind: Literal["rms", "layer"]  # "rms" or "layer"
    x: fx.Node  # the normalized node
    eps: float  # added before the root
    weight: tuple[fx.Node, float] | None = (
        None  # its node, and an offset added to it; None for ones
    )
    bias: fx.Node | None = None  # its node; None for zeros


def norm_call(node: fx.Node, graph_module: fx.GraphModule) -> NormCall | None:
    """Returns the normalization that ends at a node, or None."""
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
    """Returns a vector parameter and the offset added to it, or None."""
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
    """Matches x / sqrt(mean(x^2) + eps), or the same of x - mean(x); None without a match."""
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
    """Returns x if a node is mean(x) over the last dimension, with keepdim."""
    node = stripped(node)
    if not isinstance(node, fx.Node) or node.target is not _aten.mean.dim:
        return None
    dims: Any = node.args[1]
    last = len(node.meta["val"].shape) - 1
    keeps = len(node.args) > 2 and bool(node.args[2])
    found = stripped(node.args[0])
    return found if keeps and list(dims) in ([-1], [last]) else None


def _centered(node: fx.Node) -> fx.Node | None:
    """Returns x if a node is x - mean(x), or None."""
    if node.target is not _aten.sub.Tensor or len(node.args) > 2 or node.kwargs:
        return None
    x = stripped(node.args[0])
    return x if isinstance(x, fx.Node) and _mean_of(node.args[1]) is x else None


def _is_same_rows(one: Any, other: fx.Node) -> bool:
    """Whether two nodes are the same, or both the same rows minus their mean."""
    if one is other:
        return True
    if not isinstance(one, fx.Node):
        return False
    x = _centered(one)
    return x is not None and x is _centered(other)


def _inside_root(node: fx.Node, *, is_inverse: bool) -> fx.Node | None:
    """Returns the argument of a root or reciprocal root."""
    power: Any = node.args[1] if node.target in _POWERS else None
    root = _aten.rsqrt.default if is_inverse else _aten.sqrt.default
    if node.target is not root and power != (-0.5 if is_inverse else 0.5):
        return None
    found = stripped(node.args[0])
    return found if isinstance(found, fx.Node) else None


def squared_of(node: fx.Node) -> Any:
    """Returns x if a node is x^2, or None."""
    is_square = (
        node.target is _aten.square.default
        or (node.target in _POWERS and node.args[1] == 2)
        or (node.target in MULTIPLIES and node.args[0] is node.args[1])
    )
    return stripped(node.args[0]) if is_square else None
