"""Views of rows: which columns of a computed value a node of the graph shows, and in which order.

Calls that only move elements (view, transpose, slice, expand, ...) are run on numbers of rows and
columns. So no such call needs a rule, and one that would mix rows is noticed.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.kernel_programs.evaluation import Case, Evaluator, Step
from npu_compiler.kernel_programs.refusal import refused

__all__ = ["Mover", "View", "arranged", "is_cast", "is_moving", "other_rows", "rows_first"]

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
# Of their second argument only the shape counts.
_LIKE_OTHERS = {_aten.view_as.default, _aten.expand_as.default, _aten.reshape_as.default}
_MOVES |= _LIKE_OTHERS
_ROW_ROLES = {"batch", "tokens", "kept", "rows", "kept rows"}
_CASE = Case()


@dataclass(frozen=True)
class View:
    """What a node shows of a value.

    Attributes:
        value: of the draft.
        columns: int64, of the shape of the node's dimensions that are not its rows.
    """

    value: int
    columns: torch.Tensor

    @property
    def flat(self) -> list[int]:
        """The columns in their order."""
        result: list[int] = self.columns.flatten().tolist()
        return result

    @property
    def run(self) -> tuple[int, int] | None:
        """First column and number of columns if they follow one another; else None."""
        flat = self.columns.flatten()
        first, count = int(flat[0]), flat.numel()
        if torch.equal(flat, torch.arange(first, first + count)):
            return first, count
        return None

    @property
    def is_repeated(self) -> bool:
        """Whether a column is shown more than once."""
        return len(set(self.flat)) < self.columns.numel()


def other_rows(roles: Sequence[str | int]) -> str:
    """Returns why a call is refused whose result has dimensions that no row has."""
    if "all" in roles and "?" not in roles:
        return (
            "computes with the cache of all tokens outside of attention, as latent keys and an "
            "indexer do"
        )
    return f"has a dimension of another kind, {roles}"


def is_cast(node: fx.Node) -> bool:
    """Whether a call changes at most the dtype or the memory of its first argument."""
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
    """Follows columns through calls that move elements."""

    def __init__(self, graph_module: fx.GraphModule, step: Step) -> None:
        self._step = step
        self._evaluator = Evaluator(graph_module, step, _CASE)

    def moved(self, node: fx.Node, source: fx.Node, view: View) -> View:
        """Returns what a moving call shows.

        Args:
            node: the call; a getitem of a call that splits counts as one with it.
            source: the tensor that it moves.
            view: what the source shows.

        Raises:
            LoweringError: [not-row-wise] if elements of one row come to lie in another.
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
        """Returns an empty tensor of the shape of the dimensions that are rows."""
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
    """Returns a tensor with the dimensions of its rows first, batch before tokens."""
    return tensor.permute(_order(roles))


def arranged(tensor: torch.Tensor, roles: Sequence[str | int]) -> torch.Tensor:
    """The reverse of rows_first: a tensor whose rows come first in the order of a node's roles."""
    order = _order(roles)
    return tensor.permute([order.index(dim) for dim in range(len(order))])


def _order(roles: Sequence[str | int]) -> list[int]:
    ranks: dict[Any, int] = {"batch": 0, "rows": 0, "kept rows": 0, "tokens": 1, "kept": 1}
    rows = [dim for dim, role in enumerate(roles) if role in ranks]
    rows.sort(key=lambda dim: ranks[roles[dim]])
    return rows + [dim for dim, role in enumerate(roles) if role not in ranks]
