"""quantize_tensor and compress_to_i4: weights as plain tensors, round to nearest."""

from __future__ import annotations

import torch

from npu_compiler.errors import OptionError
from npu_compiler.quantize.weights import quantize_weight
from npu_ops.fused.quantized_linear import pack_int4
from npu_runtime.public_calls import public_call

__all__ = ["compress_to_i4", "quantize_tensor"]

_BITS = {(-128, 127): 8, (-8, 7): 4}


@public_call
def quantize_tensor(
    weight: torch.Tensor,
    min_max_range: tuple[int, int] = (-128, 127),
    *,
    group_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds a weight to the nearest integers, symmetrically: weight = scale * integers.

    A scale is the smallest that clips nothing; rows of zeros have the scale 1.

    Args:
        weight: (outputs, inputs), a float dtype.
        min_max_range: (-128, 127) for 8 bits, (-8, 7) for 4.
        group_size: inputs that share a scale; None for one scale per output.

    Returns:
        The integers as int8 of the weight's shape, and the scales as float32 of shape (outputs,
        groups).

    Raises:
        OptionError: [quantize-range] for another range, [quantize-weight] when weight is no matrix
            or group_size does not divide its rows.
    """
    bits = _BITS.get(tuple(min_max_range))  # type: ignore[arg-type]
    if bits is None:
        raise OptionError(
            f"quantize_tensor: min_max_range is (-128, 127) or (-8, 7); got {min_max_range}. "
            "Choose one.",
            code="quantize-range",
        )
    stored = quantize_weight(weight.detach(), bits=bits, group_size=group_size, symmetric=True)
    return stored.values.flatten(1), stored.scale[..., 0]


@public_call
def compress_to_i4(weights: torch.Tensor) -> torch.Tensor:
    """Packs integers from -8 to 7, two neighbours to a byte, as npu::quantized_linear reads them.

    Args:
        weights: (outputs, inputs) of an integer dtype, inputs even.

    Returns:
        uint8 of shape (outputs, inputs / 2): the even neighbour in the low nibble, 8 added to both.

    Raises:
        OptionError: [quantize-values] for a value that 4 bits do not hold, an odd number of inputs,
            or a dtype with fractions.
    """
    is_whole = not weights.dtype.is_floating_point and not weights.dtype.is_complex
    if weights.is_quantized or not is_whole or weights.dim() == 0 or weights.shape[-1] % 2:
        raise OptionError(
            f"compress_to_i4: weights are integers with an even last dim; got {weights.dtype} of "
            f"shape {tuple(weights.shape)}. Use quantize_tensor(weight, (-8, 7)).",
            code="quantize-values",
        )
    wide = weights.to(torch.int16)
    if wide.numel() and not -8 <= int(wide.min()) <= int(wide.max()) <= 7:
        raise OptionError(
            f"compress_to_i4: weights are from -8 to 7; got {int(wide.min())} to "
            f"{int(wide.max())}. Use quantize_tensor(weight, (-8, 7)).",
            code="quantize-values",
        )
    return pack_int4(wide + 8)
