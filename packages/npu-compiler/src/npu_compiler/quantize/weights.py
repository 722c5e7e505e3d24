"""Quantization of weights to 8 and 4 bits, as numpy arrays or as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from npu_compiler.errors import OptionError
from npu_ops.fused.quantized_linear import pack_int4
from npu_runtime.public_calls import public_call

__all__ = [
    "GROUP_SIZES",
    "MODES",
    "ROUNDINGS",
    "QuantizedWeight",
    "compress_to_i4",
    "fitting_group",
    "quantize_tensor",
    "quantize_weight",
]

MODES = ("int8", "int4")
GROUP_SIZES = (128, 64, 32)
# Rounding methods for int4 weights with data; see npu_compiler.quantize.calibrated.
ROUNDINGS = ("gptq", "awq")

# Rows quantized at once, to keep float32 copies small compared with the weights.
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix of shape (rows, columns) as integers.

    Attributes:
        values: uint8 for asymmetric and int8 for symmetric weights, one element per byte, shape
            (rows, groups, columns / groups).
        scale: float32, shape (rows, groups, 1).
        zero_point: uint8 of the same shape, or None for symmetric weights.
        bits: 8 or 4.
    """

    values: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None
    bits: int

    @property
    def groups(self) -> int:
        """Number of groups per row."""
        return self.values.shape[1]

    def dequantize(self) -> torch.Tensor:
        """Returns the dequantized float32 matrix of shape (rows, columns)."""
        values = self.values.float()
        if self.zero_point is not None:
            values -= self.zero_point.float()
        return (values * self.scale).flatten(1)


@public_call
def fitting_group(columns: int, group_size: int | None) -> int | None:
    """Returns the group size to use for rows of a length.

    It is the largest of 128, 64, 32 that divides the row and is at most group_size. None if there
    is none: such a row is then one group of int8.

    Args:
        columns: length of a row (the reduced axis of the product).
        group_size: requested size, one of 32, 64, 128; None for the whole row.
    """
    if group_size is None:
        return columns
    for size in GROUP_SIZES:
        if size <= group_size and columns % size == 0:
            return size
    return None


@public_call
def quantize_weight(
    weight: torch.Tensor, *, bits: int, group_size: int | None = None, symmetric: bool = False
) -> QuantizedWeight:
    """Rounds a matrix to the nearest of 2**bits evenly spaced values per group.

    Asymmetric groups span [min(x, 0), max(x, 0)]; symmetric ones use a signed integer without a
    zero point, and the smallest scale that clips nothing.

    Args:
        weight: (rows, columns), a float dtype.
        bits: 8 or 4.
        group_size: elements along a row that share a scale; None for the whole row.
        symmetric: without zero points.

    Raises:
        OptionError: [quantize-weight] if weight is not a matrix, group_size does not divide it, or
            bits is neither 4 nor 8.
    """
    if bits not in (4, 8):
        raise OptionError(
            f"quantize_weight: `bits` must be 4 or 8, got {bits}. Choose one.",
            code="quantize-weight",
        )
    is_divided = group_size is None or (group_size > 0 and weight.shape[-1] % group_size == 0)
    if weight.dim() != 2 or not is_divided:
        raise OptionError(
            "quantize_weight: `weight` must be a matrix with rows divisible by `group_size`, got "
            f"shape {tuple(weight.shape)}, group_size {group_size}. Choose one by fitting_group().",
            code="quantize-weight",
        )
    rows, columns = weight.shape
    groups = 1 if group_size is None else columns // group_size
    dtype = torch.int8 if symmetric else torch.uint8
    values = torch.empty((rows, groups, columns // groups), dtype=dtype)
    scale = torch.empty((rows, groups, 1), dtype=torch.float32)
    zero = None if symmetric else torch.empty((rows, groups, 1), dtype=torch.uint8)
    step = max(1, _CHUNK_ELEMENTS // max(columns, 1))
    for first in range(0, rows, step):
        part = slice(first, first + step)
        block = weight[part].float().reshape(-1, groups, columns // groups)
        if zero is None:
            values[part], scale[part] = _symmetric(block, bits)
        else:
            values[part], scale[part], zero[part] = _asymmetric(block, bits)
    return QuantizedWeight(values, scale, zero, bits)


def _symmetric(block: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    top = 2 ** (bits - 1) - 1
    high = block.amax(-1, keepdim=True).clamp_min_(0)
    low = block.amin(-1, keepdim=True).clamp_max_(0)
    scale = torch.maximum(high / top, -low / (top + 1))
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (block / scale).round_().clamp_(-top - 1, top).to(torch.int8), scale


def _asymmetric(block: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    levels = 2**bits - 1
    high = block.amax(-1, keepdim=True).clamp_min_(0)
    low = block.amin(-1, keepdim=True).clamp_max_(0)
    scale = (high - low) / levels
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = (-low / scale).round_().clamp_(0, levels)
    values = (block / scale).round_().add_(zero).clamp_(0, levels)
    return values.to(torch.uint8), scale, zero.to(torch.uint8)


_BITS = {(-128, 127): 8, (-8, 7): 4}


@public_call
def quantize_tensor(
    weight: torch.Tensor,
    min_max_range: tuple[int, int] = (-128, 127),
    *,
    group_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds a weight to the nearest integers, symmetrically: weight = scale * integers.

    Scales are the smallest without clipping; rows of zeros have the scale 1.

    Args:
        weight: (outputs, inputs), a float dtype.
        min_max_range: (-128, 127) for 8 bits, (-8, 7) for 4.
        group_size: number of inputs that share a scale; None for one scale per output.

    Returns:
        The integers as int8 of the weight's shape, and the scales as float32 of shape (outputs,
        groups).

    Raises:
        OptionError: [quantize-range] for another range, [quantize-weight] if weight is not a matrix
            or group_size does not divide its rows.
    """
    bits = _BITS.get(tuple(min_max_range))  # type: ignore[arg-type]
    if bits is None:
        raise OptionError(
            "quantize_tensor: `min_max_range` must be (-128, 127) or (-8, 7), got "
            f"{min_max_range}. "
            "Choose one.",
            code="quantize-range",
        )
    stored = quantize_weight(weight.detach(), bits=bits, group_size=group_size, symmetric=True)
    return stored.values.flatten(1), stored.scale[..., 0]


@public_call
def compress_to_i4(weights: torch.Tensor) -> torch.Tensor:
    """Packs integers from -8 to 7, two neighbours per byte, as npu::quantized_linear expects.

    Args:
        weights: (outputs, inputs) of an integer dtype, inputs even.

    Returns:
        uint8 of shape (outputs, inputs / 2), with the even neighbour in the low nibble, 8 added to
        both.

    Raises:
        OptionError: [quantize-values] for a value outside of 4 bits, an odd number of inputs, or a
            dtype that is not an integer type.
    """
    is_whole = not weights.dtype.is_floating_point and not weights.dtype.is_complex
    if weights.is_quantized or not is_whole or weights.dim() == 0 or weights.shape[-1] % 2:
        raise OptionError(
            "compress_to_i4: `weights` must be integers with an even last dim, got "
            f"{weights.dtype} of "
            f"shape {tuple(weights.shape)}. Use quantize_tensor(weight, (-8, 7)).",
            code="quantize-values",
        )
    wide = weights.to(torch.int16)
    if wide.numel() and not -8 <= int(wide.min()) <= int(wide.max()) <= 7:
        raise OptionError(
            f"compress_to_i4: `weights` must be from -8 to 7, got {int(wide.min())} to "
            f"{int(wide.max())}. Use quantize_tensor(weight, (-8, 7)).",
            code="quantize-values",
        )
    return pack_int4(wide + 8)
