"""Integer weights, rounded down, with float16 scales."""

from __future__ import annotations

from typing import Any

import torch

import npu_compiler
from npu_llm.compat.intel_npu_acceleration_library.dtypes import dtype_of, int4, int8
from npu_llm.errors import OptionError

__all__ = [
    "compress_to_i4",
    "quantize_fit",
    "quantize_i4_model",
    "quantize_i8_model",
    "quantize_model",
    "quantize_tensor",
]


def quantize_tensor(
    weight: torch.Tensor, min_max_range: tuple[int, int] = (-128, 127)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds a weight down to integers: weight = scale * integers, with a scale per row.

    As in that library, a row of zeros gives every row the scale of the whole weight.

    Args:
        weight: (outputs, inputs).
        min_max_range: smallest and largest integer.

    Returns:
        int8 of the weight's shape, and float16 of shape (outputs, 1).

    Raises:
        OptionError: [quantize-scale] if float16 cannot represent a scale accurately enough;
            [quantize-weight] for a value that is not a finite tensor, or an invalid range.
    """
    if not isinstance(weight, torch.Tensor) or not bool(weight.isfinite().all()):
        kind = "NaN or infinity" if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise OptionError(
            f"quantize_tensor: `weight` must be a tensor of finite numbers, got {kind}. Pass "
            "torch.from_numpy of an array, and correct the weights.",
            code="quantize-weight",
        )
    if max(min_max_range) <= 0:
        raise OptionError(
            f"quantize_tensor: `min_max_range` must extend above 0, got {min_max_range}. Pass "
            "(-128, 127), or (-8, 7).",
            code="quantize-weight",
        )
    largest = weight.abs().amax(-1, keepdim=True)
    if not bool(largest.all()):
        largest = torch.full_like(largest, float(largest.max()))
    scale = (largest / max(min_max_range)).to(torch.float16).reshape(-1, 1)
    integers = torch.floor(weight / scale)
    least, greatest = float(integers.min()), float(integers.max())
    if not min(min_max_range) <= least <= greatest <= max(min_max_range):
        raise OptionError(
            f"quantize_tensor: integers must be from {min(min_max_range)} to "
            f"{max(min_max_range)}, got {least} to {greatest}, since float16 cannot represent the "
            "scale. Use npu_compiler.quantize_tensor with its float32 scales.",
            code="quantize-scale",
        )
    return integers.to(torch.int8), scale


def compress_to_i4(weights: torch.Tensor) -> torch.Tensor:
    """Packs integers from -8 to 7 in two's complement, two adjacent ones per byte.

    Args:
        weights: (outputs, inputs), inputs even.

    Returns:
        uint8 (outputs, inputs / 2), the even index in the low half.

    Raises:
        npu_compiler.errors.OptionError: [quantize-values] for other values.
    """
    return npu_compiler.compress_to_i4(weights) ^ 0x88  # which adds 8 to both


def quantize_model(model: torch.nn.Module, dtype: Any) -> torch.nn.Module:
    """Replaces each linear layer by one with integers, rounded to nearest.

    Args:
        model: the model, modified in place.
        dtype: int8 or int4, of torch or of this library.

    Raises:
        OptionError: [unknown-dtype] for another.
    """
    kind = dtype_of(dtype)
    if kind not in (int8, int4):
        raise OptionError(
            f"quantize_model: `dtype` must be int8 or int4, got {dtype!r}. Pass one of these.",
            code="unknown-dtype",
        )
    return npu_compiler.quantize_model(model, kind.name)


def quantize_i8_model(model: torch.nn.Module, algorithm: str = "RTN") -> torch.nn.Module:
    """Replaces each linear layer by one with int8; see quantize_fit."""
    return quantize_fit(model, "int8", algorithm)


def quantize_i4_model(model: torch.nn.Module, algorithm: str = "RTN") -> torch.nn.Module:
    """Replaces each linear layer by one with int4; see quantize_fit."""
    return quantize_fit(model, "int4", algorithm)


def quantize_fit(
    model: torch.nn.Module, weights_dtype: str, algorithm: str = "RTN"
) -> torch.nn.Module:
    """Replaces each linear layer by one with integers.

    Args:
        model: the model, modified in place.
        weights_dtype: "int8" or "int4".
        algorithm: "RTN", round to nearest.

    Raises:
        OptionError: [unknown-dtype] or [quantize-algorithm] for another.
    """
    if algorithm != "RTN":
        raise OptionError(
            f"quantize_fit: `algorithm` must be RTN, got {algorithm!r}. For others, use "
            "npu_compiler.quantize with calibration data.",
            code="quantize-algorithm",
        )
    return quantize_model(model, {"int8": int8, "int4": int4}.get(weights_dtype, weights_dtype))
