"""Parameters built from a GGUF file's tensors: rows, their order, and value changes.

ggml and transformers store the same matrices with rows in different orders, fused or split. Nearly
all of that is a selection of rows, so that quantized blocks can be moved without being unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from npu_compiler.quantize import QuantizedWeight
from npu_llm.gguf.file import GgufTensor

__all__ = ["Blocks", "Weight", "halves", "joined", "of_tensor", "zeros"]

# A block: the scale in float16, then 32 integers plus 8; those of the first half are in the low
# bits.
_Q4_0_BYTES = 18
_HALVES = {"F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Blocks:
    """A parameter's rows in the file's format.

    Attributes:
        type: name of the block type, such as "Q4_K".
        parts: the tensors' rows, mapped: (rows, bytes of a row) uint8 each.
        order: (rows,) indices of the parameter's rows in the concatenated parts; None for all in
            order.
        shape: shape of the rows' values; a transposed parameter swaps the last two sizes.
        is_transposed: whether the parameter is transposed.
    """

    type: str
    parts: tuple[np.ndarray, ...]
    order: np.ndarray | None
    shape: tuple[int, ...]
    is_transposed: bool = False

    def rows(self, index: int | None = None) -> np.ndarray:
        """Returns the parameter's rows in its order: (rows, bytes of a row) uint8.

        Args:
            index: index of one matrix, if the parameter has several; None for all.
        """
        chosen = slice(None)
        if index is not None:
            count = math.prod(self.shape[1:-1])
            chosen = slice(index * count, (index + 1) * count)
        found = self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)
        return found[chosen] if self.order is None else found[self.order[chosen]]


@dataclass(frozen=True)
class Weight:
    """A parameter's values, read from the file on demand.

    Attributes:
        tensors: the source tensors.
        shape: shape of the parameter.
        order: (rows,) indices of its rows in the concatenated tensors; None for all in order. A
            vector has one row per element.
        changes: functions applied in order to the rows' float32 values.
        before: shape of the rows before any change.
        others: further tensors that the changes read.
    """

    tensors: tuple[GgufTensor, ...]
    shape: tuple[int, ...]
    order: np.ndarray | None = None
    changes: tuple[Callable[[np.ndarray], np.ndarray], ...] = ()
    before: tuple[int, ...] = ()
    others: tuple[GgufTensor, ...] = ()

    def numel(self) -> int:
        """Returns the number of elements."""
        return math.prod(self.shape)

    def take(self, order: np.ndarray) -> Weight:
        """Returns the weight with selected or reordered rows of the first dimension."""
        assert not self.changes, "rows are selected before values change"
        inner = math.prod(self.shape[1:-1]) if len(self.shape) > 1 else 1
        chosen = (order[:, None] * inner + np.arange(inner)).reshape(-1)
        chosen = chosen if self.order is None else self.order[chosen]
        return replace(self, shape=(len(order), *self.shape[1:]), order=chosen)

    def rows(self, first: int, last: int) -> Weight:
        """Returns the weight's rows [first, last)."""
        return self.take(np.arange(first, last))

    def view(self, *shape: int) -> Weight:
        """Returns the weight reshaped to the same number of elements and the same last size."""
        if -1 in shape:
            rest = -math.prod(shape)
            shape = tuple(math.prod(self.shape) // rest if n == -1 else n for n in shape)
        if shape[-1] == self.shape[-1] and math.prod(shape) == math.prod(self.shape):
            return replace(self, shape=shape)
        return self.then(lambda values: values.reshape(shape), shape)

    def then(
        self, change: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...] | None = None
    ) -> Weight:
        """Returns the weight with changed values, in the resulting shape."""
        return replace(
            self,
            shape=self.shape if shape is None else shape,
            changes=(*self.changes, change),
            before=self.before if self.changes else self.shape,
        )

    def reading(self, others: Sequence[GgufTensor]) -> Weight:
        """Returns the weight with further tensors for its changes."""
        return replace(self, others=(*self.others, *others))

    def transposed(self) -> Weight:
        """Returns the matrix, or each of several, as (columns, rows)."""
        *outer, rows, columns = self.shape
        return self.then(_swap, (*outer, columns, rows))

    @property
    def is_as_stored(self) -> bool:
        """Whether it is one whole float tensor in its own order."""
        kinds = ("F32", *_HALVES)
        return (
            len(self.tensors) == 1
            and self.order is None
            and not self.changes
            and self.tensors[0].type in kinds
        )

    def values(self) -> torch.Tensor:
        """Returns the values: mapped in the file's dtype if they are stored so; else float32."""
        if self.is_as_stored:
            return _stored(self.tensors[0]).view(self.shape)
        values = self._rows().reshape(self.before if self.changes else self.shape)
        for change in self.changes:
            values = change(values)
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).view(self.shape)

    def integers(
        self, *, is_transposed: bool = False, index: int | None = None
    ) -> QuantizedWeight | None:
        """Returns the integers whose products with scales are the values, for Q4_0; else None.

        Args:
            is_transposed: whether the values are (inputs, outputs).
            index: index of one matrix, if there are several.
        """
        blocks = self.blocks()
        if blocks is None or blocks.type != "Q4_0" or blocks.is_transposed != is_transposed:
            return None
        rows = torch.from_numpy(np.ascontiguousarray(blocks.rows(index)))
        rows = rows.view(len(rows), -1, _Q4_0_BYTES)
        scale = rows[..., :2].contiguous().view(torch.float16).float()
        values = torch.cat([rows[..., 2:] & 15, rows[..., 2:] >> 4], -1).to(torch.int8) - 8
        return QuantizedWeight(values, scale, None, 4)

    def blocks(self) -> Blocks | None:
        """Returns the rows in the file's format; None if values are changed, or types differ."""
        if self.changes not in ((), (_swap,)) or not self.tensors or len(self.shape) < 2:
            return None
        kinds = {tensor.type for tensor in self.tensors}
        if len(kinds) > 1 or len({tensor.shape[-1] for tensor in self.tensors}) > 1:
            return None
        parts = tuple(tensor.blocks() for tensor in self.tensors)
        shape = self.before if self.changes else self.shape
        return Blocks(kinds.pop(), parts, self.order, shape, bool(self.changes))

    def _rows(self) -> np.ndarray:
        if not self.tensors:
            return np.zeros(self.shape, np.float32)
        if self.order is not None and len(self.tensors) == 1 and len(self.tensors[0].shape) > 1:
            return self.tensors[0].values(self.order)
        all_rows = [
            tensor.values().reshape(-1, tensor.shape[-1] if len(tensor.shape) > 1 else 1)
            for tensor in self.tensors
        ]
        found = all_rows[0] if len(all_rows) == 1 else np.concatenate(all_rows)
        return found if self.order is None else found[self.order]


def of_tensor(tensor: GgufTensor) -> Weight:
    """Returns a weight that is an unchanged tensor."""
    return Weight((tensor,), tensor.shape)


def zeros(*shape: int) -> Weight:
    """Returns a weight of zeros without a source in the file."""
    return Weight((), shape)


def joined(weights: Sequence[Weight], axis: int = 0) -> Weight:
    """Concatenates weights along their first dimension, or the second one."""
    assert not any(one.changes for one in weights), "rows are joined before values change"
    orders, start = [], 0
    for one in weights:
        rows = sum(_row_count(tensor) for tensor in one.tensors)
        orders.append(start + (np.arange(rows) if one.order is None else one.order))
        start += rows
    tensors = tuple(tensor for one in weights for tensor in one.tensors)
    first = weights[0].shape
    size = sum(one.shape[axis] for one in weights)
    shape = (*first[:axis], size, *first[axis + 1 :])
    if axis == 0:
        is_plain = all(one.order is None for one in weights)
        return Weight(tensors, shape, None if is_plain else np.concatenate(orders))
    outer = [order.reshape(first[0], -1) for order in orders]
    return Weight(tensors, shape, np.concatenate(outer, 1).reshape(-1))


def halves(heads: int, head_dim: int, rotated: int | None = None) -> np.ndarray:
    """Returns the order that converts pairs of rotary positions to halves.

    ggml's "normal" rotary embedding rotates neighbouring rows of a head; transformers' classes
    mostly rotate row i with row i + rotated / 2.

    Args:
        heads: number of heads.
        head_dim: rows per head.
        rotated: number of rotated rows per head, from the first; all by default.

    Returns:
        (heads * head_dim,) int64.
    """
    rotated = head_dim if rotated is None else rotated
    head = np.concatenate(
        [np.arange(0, rotated, 2), np.arange(1, rotated, 2), np.arange(rotated, head_dim)]
    )
    order: np.ndarray = (np.arange(heads)[:, None] * head_dim + head).reshape(-1)
    return order


def _swap(values: np.ndarray) -> np.ndarray:
    return values.swapaxes(-1, -2)


def _row_count(tensor: GgufTensor) -> int:
    return tensor.shape[0] if len(tensor.shape) == 1 else math.prod(tensor.shape[:-1])


def _stored(tensor: GgufTensor) -> torch.Tensor:
    if tensor.type == "F32":
        return torch.from_numpy(tensor.values())
    raw = tensor.blocks()
    raw = raw if raw.ctypes.data % 2 == 0 else raw.copy()
    return torch.from_numpy(raw.view(np.int16)).view(_HALVES[tensor.type]).view(tensor.shape)
