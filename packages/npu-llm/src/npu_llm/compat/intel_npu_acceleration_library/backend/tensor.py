"""The tensors of an NNFactory, with that library's conventions that differ from torch's.

Preserved: a shape is a list, len counts all elements, an integer index keeps its axis, and None in
an index selects the whole axis; `T` swaps the last two axes; `max` and `min` return no indices.
Defects there follow torch here: `flatten`, an open slice that ends at 0, and layer norms.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from npu_compiler import GraphTensor
from npu_llm.compat.intel_npu_acceleration_library.dtypes import NPUDtype, dtype_of, warn_once
from npu_llm.errors import OptionError

__all__ = [
    "FACTORIES",
    "GraphInput",
    "Tensor",
    "fitted",
    "flattened",
    "unpacked",
    "without_ignored_mask",
]

# The factory of each graph's calls, held weakly: tensors alone do not keep it alive.
FACTORIES: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()

Axes = int | Sequence[int] | None


class Tensor(GraphTensor):
    """A tensor of a graph; supports torch's operators, methods and functions.

    Attributes:
        declared: dtype of the parameter, if the graph computes in another dtype.
    """

    declared: NPUDtype | None = None

    @property
    def node(self) -> Tensor:
        """The tensor itself, in place of that library's bindings."""
        return self

    @property
    def factory(self) -> Any:
        """The tensor's NNFactory; None once it is deleted."""
        return FACTORIES[self._recording]()

    @property
    def shape(self) -> list[int]:  # type: ignore[override]
        """The shape."""
        return list(self._fake.shape)

    @property
    def dtype(self) -> Any:  # type: ignore[override]
        """An NPUDtype; numpy's bool for results of comparisons."""
        if self._fake.dtype is torch.bool:
            return np.bool_
        return self.declared or dtype_of(self._fake.dtype)

    @property
    def T(self) -> Tensor:  # type: ignore[override]
        """The last two axes swapped."""
        return self._call(torch.transpose, -1, -2)

    def __bool__(self) -> bool:
        """Returns True, so that `assert tensor` passes; values are unknown before a run."""
        return super().__bool__() if self._fake.dtype is torch.bool else True

    def __len__(self) -> int:
        """Returns the number of elements."""
        return math.prod(self._fake.shape)

    def __getitem__(self, key: Any) -> Tensor:
        """Slices axes.

        Args:
            key: integers, slices and an Ellipsis; an integer selects one element and keeps its
                axis.

        Raises:
            OptionError: [tensor-index] for other indices, and integers out of range.
        """
        parts = key if isinstance(key, tuple) else (key,)
        self._check_numbers(parts)
        taken = tuple(map(_as_slice, parts))
        if any(isinstance(part, int) for part in parts):
            warn_once("index-keeps-axis")
        return self._call(torch.Tensor.__getitem__, taken)

    def to(self, dtype: Any) -> Tensor:  # type: ignore[override]
        """Casts to a dtype of torch, of numpy or of this library."""
        return self._call(torch.Tensor.to, dtype_of(dtype).torch_dtype)

    def type(self, dtype: Any) -> Tensor:  # type: ignore[override]
        """Casts, like `to`."""
        return self.to(dtype)

    def view(self, *shape: Any) -> Tensor:
        """Reshapes, like `reshape`."""
        return self._call(torch.Tensor.reshape, *shape)

    def chunk(self, chunks: int, dim: int = 0) -> Any:
        """Splits an axis into a list of parts; one part is the tensor itself."""
        return self if chunks == 1 else list(self._call(torch.chunk, chunks, dim))

    def max(self, dim: Axes = None, keep_dims: bool = False) -> Tensor:  # type: ignore[override]
        """Returns the maximum over axes, by default all."""
        return self._call(torch.amax, self._axes(dim), keep_dims)

    def min(self, dim: Axes = None, keep_dims: bool = False) -> Tensor:  # type: ignore[override]
        """Returns the minimum over axes, by default all."""
        return self._call(torch.amin, self._axes(dim), keep_dims)

    def mean(self, dim: Axes = None, keep_dims: bool = False, dtype: Any = None) -> Tensor:
        """Returns the mean over axes, by default all."""
        return self._cast(self._call(torch.mean, self._axes(dim), keep_dims), dtype)

    def sum(self, dim: Axes = None, keep_dims: bool = False, dtype: Any = None) -> Tensor:
        """Returns the sum over axes, by default all."""
        return self._cast(self._call(torch.sum, self._axes(dim), keep_dims), dtype)

    def prod(self, dim: int | None = None, keep_dims: bool = False, dtype: Any = None) -> Tensor:
        """Returns the product over an axis, or over all elements."""
        over = () if dim is None else (dim, keep_dims)
        return self._cast(self._call(torch.prod, *over), dtype)

    def elu(self, alpha: float = 1.0) -> Tensor:
        """ELU."""
        return self._call(F.elu, alpha)

    def grn(self, bias: float = 1e-12) -> Tensor:
        """Divides by the root of the sum of squares over axis 1, plus bias under the root."""
        total = self._call(torch.square).sum(1, keep_dims=True)
        return self._call(torch.div, (total + bias).sqrt())

    def _call(self, function: Callable[..., Any], *args: Any) -> Tensor:
        made: Tensor = self._recording.call(function, (self, *args), {})
        return made

    ceiling = partialmethod(_call, torch.ceil)
    hsigmoid = partialmethod(_call, F.hardsigmoid)
    hswish = partialmethod(_call, F.hardswish)
    mish = partialmethod(_call, F.mish)
    softplus = partialmethod(_call, F.softplus)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Records a torch call, with the conventions that differ from torch's."""
        given, named = pytree.tree_map_only(
            NPUDtype, lambda dtype: dtype.torch_dtype, (args, dict(kwargs or {}))
        )
        if func in (torch.max, torch.min) and _is_over_axes(given, named):
            return getattr(given[0], func.__name__)(*given[1:], **named)
        if func is F.scaled_dot_product_attention:
            given, named = (), without_ignored_mask(given, named)
        return super().__torch_function__(func, types, given, named)

    def _check_numbers(self, parts: tuple[Any, ...]) -> None:
        """Rejects integer indices that would give an empty slice."""
        sizes = tuple(self._fake.shape)
        at = next((place for place, part in enumerate(parts) if part is Ellipsis), len(parts))
        after = parts[at + 1 :]
        pairs = [*zip(parts[:at], sizes, strict=False)]
        pairs += zip(reversed(after), reversed(sizes), strict=False)
        for part, size in pairs:
            if isinstance(part, int) and not -size <= part < size:
                raise OptionError(
                    f"Tensor: an index must be inside its axis, of {size} here, got {part} for "
                    f"{list(sizes)}. Pass one from {-size} to {size - 1}.",
                    code="tensor-index",
                )

    def _axes(self, dim: Axes) -> Any:
        return tuple(range(self._fake.dim())) if dim is None else dim

    def _cast(self, made: Tensor, dtype: Any) -> Tensor:
        return made if dtype is None else made.to(dtype)


def without_ignored_mask(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of torch's attention by name, without an ignored mask.

    That library ignores the mask under is_causal.
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    if given.get("is_causal") and given.get("attn_mask") is not None:
        warn_once("causal-mask")
        given["attn_mask"] = None
    return given


def _is_over_axes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch.max or torch.min reduces axes, instead of comparing two tensors."""
    return not any(isinstance(value, torch.Tensor) for value in (*args[1:], *kwargs.values()))


def _as_slice(part: Any) -> Any:
    if part is Ellipsis:
        return part
    if part is None:
        return slice(None)
    if isinstance(part, int) and not isinstance(part, bool):
        return slice(part, part + 1 or None)
    if isinstance(part, slice) and (part.step is None or part.step > 0):
        return part
    raise OptionError(
        "Tensor: an index must consist of integers, slices with positive steps, and an Ellipsis, "
        f"got {part!r}. Use NNFactory.gather for others.",
        code="tensor-index",
    )


_BYTES = (torch.uint8, torch.int8)


@dataclass(frozen=True)
class GraphInput:
    """An input of a graph.

    Attributes:
        shape: shape in the program.
        dtype: dtype in the program.
        is_packed: whether each byte contains two 4-bit values.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_packed: bool = False


def flattened(given: Sequence[Any], inputs: Sequence[GraphInput]) -> list[torch.Tensor]:
    """Returns one tensor per array from nested lists, skipping None.

    A pair of integers and scales remains two tensors if the graph's next input takes integers, and
    is multiplied for a float input.

    Raises:
        OptionError: [graph-array] for values that are not arrays.
    """
    found: list[torch.Tensor] = []

    def add(value: Any) -> None:
        if value is None:
            return
        if not isinstance(value, list | tuple):
            found.append(_tensor(value))
            return
        parts = [_tensor(part) for part in value] if _is_pair(value) else None
        at = inputs[len(found)] if len(found) < len(inputs) else None
        is_quantized = parts is not None and parts[0].dtype in _BYTES
        if parts is not None and is_quantized and at is not None and at.dtype.is_floating_point:
            integers = unpacked(parts[0]) if parts[0].dtype is torch.uint8 else parts[0]
            found.append((integers.to(torch.float32) * parts[1].float()).to(at.dtype))
            return
        for part in value:
            add(part)

    add(list(given))
    return found


def fitted(tensor: torch.Tensor, at: GraphInput, *, place: int) -> torch.Tensor:
    """Returns a tensor in an input's format: floats cast, axes of one element added or removed.

    Raises:
        OptionError: [graph-array] for another shape, or integers instead of floats.
    """
    if at.is_packed and tensor.dtype in _BYTES and tensor.numel() == at.shape[0]:
        return tensor.contiguous().view(torch.uint8).reshape(-1)
    is_same = tensor.dtype is at.dtype
    is_float = tensor.dtype.is_floating_point and at.dtype.is_floating_point
    if _plain(tensor.shape) == _plain(at.shape) and (is_same or is_float) and not at.is_packed:
        return tensor.reshape(at.shape).to(at.dtype).contiguous()
    wanted = f"{at.shape[0]} bytes of packed 4-bit numbers" if at.is_packed else f"{at.shape}"
    raise OptionError(
        f"NNFactory.run: input {place} must be {wanted}, {at.dtype}, got {tuple(tensor.shape)}, "
        f"{tensor.dtype}. Pass it in that shape and dtype.",
        code="graph-array",
    )


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """Unpacks 4-bit two's complement integers, two per byte, to int8.

    Args:
        packed: (..., n) uint8, the first value in a byte's low half.

    Returns:
        (..., 2 * n), int8.
    """
    both = packed.to(torch.float32)
    high = torch.floor(both / 16)
    halves = torch.stack([both - 16 * high, high], -1).flatten(-2)
    return (halves - 16 * (halves > 7).to(torch.float32)).to(torch.int8)


def _is_pair(value: Sequence[Any]) -> bool:
    return len(value) == 2 and all(isinstance(x, np.ndarray | torch.Tensor) for x in value)


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    try:
        return torch.from_numpy(np.require(value, requirements=["C", "W"]))
    except (TypeError, ValueError) as failure:
        raise OptionError(
            f"NNFactory.run: an input must be an array or a tensor, got {value!r:.60}. Pass "
            "numbers in an array.",
            code="graph-array",
        ) from failure


def _plain(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]
