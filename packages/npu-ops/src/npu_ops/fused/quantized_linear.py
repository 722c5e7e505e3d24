"""`torch.ops.npu.quantized_linear(x, weight, scale, zero_point=None, bias=None, *, bits=8)`.

A linear layer over integer weights with a scale and a zero point per group of inputs:

    w[n, k] = (weight[n, k] - zero_point[n, k // group]) * scale[n, k // group]
    y = x @ w.T + bias

Source: Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-
Only Inference, 2018, equation 1, per group as by Frantar et al., GPTQ, 2022.

x: (..., inputs) of float32, bfloat16, float16 or float64; bias: (outputs,) of the same dtype;
y: (..., outputs). Sums are float32 (float64 for float64).
weight, bits=8: (outputs, inputs), int8 or uint8. bits=4: (outputs, inputs / 2), uint8 with the
values 0 to 15 of two neighbours per byte, the even one in the low nibble; see pack_int4.
scale: (outputs, groups) of a float dtype; a group is inputs / groups neighbours. zero_point: of the
shape of scale and the dtype of weight, one per byte also for 4 bits; by default 0 for int8, 128 for
uint8, 8 for 4 bits. `npu_compiler.quantize.quantize_weight` creates all three.

Differentiable in x, scale and bias; integers have no gradient.

Raises ValueError: [op-shape] and [op-dtype] for arguments that do not fit together, [op-value] for
other bits.

Kernel and fake: csrc/fused/quantized_linear.cpp.
"""

from typing import Any

import torch

from npu_ops.fused.library import define, needed_gradients, register_gradient

__all__ = ["dequantize", "pack_int4", "reference", "unpack_int4"]

define(
    "quantized_linear(Tensor x, Tensor weight, Tensor scale, Tensor? zero_point=None, "
    "Tensor? bias=None, *, int bits=8) -> Tensor"
)


def pack_int4(values: torch.Tensor) -> torch.Tensor:
    """Packs neighbours along the last axis into bytes, the even one in the low nibble.

    Args:
        values: (..., n) of integers from 0 to 15, n even; for signed values add 8 first.

    Returns:
        uint8 of shape (..., n / 2).

    Raises:
        ValueError: [op-shape] for an odd n, [op-value] for a value outside 0 to 15.
    """
    if values.dim() == 0 or values.shape[-1] % 2:
        raise ValueError(
            f"npu.pack_int4: the last dim must be even, got values {tuple(values.shape)}. "
            "Append a column of zeros. [op-shape]"
        )
    if values.numel() and not 0 <= int(values.min()) <= int(values.max()) <= 15:
        raise ValueError(
            f"npu.pack_int4: `values` must be 0 to 15, got {int(values.min())} to "
            f"{int(values.max())}. Add 8 to signed values. [op-value]"
        )
    nibbles = values.to(torch.uint8)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """Unpacks the result of pack_int4 to uint8 values 0 to 15, of shape (..., n)."""
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


def dequantize(
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    *,
    bits: int = 8,
) -> torch.Tensor:
    """Returns the dequantized matrix (outputs, inputs), in the dtype of scale."""
    return (_centered(weight, scale, zero_point, bits) * scale.unsqueeze(-1)).flatten(1)


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    bits: int = 8,
) -> torch.Tensor:
    """Computes the op in plain torch."""
    work = torch.float64 if x.dtype is torch.float64 else torch.float32
    matrix = dequantize(weight, scale.to(work), zero_point, bits=bits)
    wide_bias = None if bias is None else bias.to(work)
    return torch.nn.functional.linear(x.to(work), matrix, wide_bias).to(x.dtype)


def _centered(
    weight: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, bits: int
) -> torch.Tensor:
    """Returns integers minus zero points, (outputs, groups, group size), in the dtype of scale."""
    values = unpack_int4(weight) if bits == 4 else weight
    outputs, groups = scale.shape
    grouped = values.reshape(outputs, groups, values.shape[1] // groups).to(scale.dtype)
    if zero_point is not None:
        return grouped - zero_point.unsqueeze(-1).to(scale.dtype)
    if bits == 4:
        return grouped - 8
    return grouped - 128 if weight.dtype is torch.uint8 else grouped


def _setup_context(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: torch.Tensor
) -> None:
    x, weight, scale, zero_point, _ = inputs
    ctx.save_for_backward(x, weight, scale, zero_point)
    ctx.bits = keyword_only_inputs["bits"]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight, scale, zero_point = ctx.saved_tensors
    needs_x, _, needs_scale, _, needs_bias = needed_gradients(ctx, 5)
    work = torch.float64 if x.dtype is torch.float64 else torch.float32
    wide_scale = scale.to(work)
    centered = _centered(weight, wide_scale, zero_point, ctx.bits)
    rows = grad.to(work).reshape(-1, grad.shape[-1])
    grad_x = grad_scale = grad_bias = None
    if needs_x:
        matrix = (centered * wide_scale.unsqueeze(-1)).flatten(1)
        grad_x = (rows @ matrix).to(x.dtype).reshape(x.shape)
    if needs_scale:
        grad_matrix = rows.t() @ x.to(work).reshape(-1, x.shape[-1])
        grad_scale = (grad_matrix.view_as(centered) * centered).sum(-1).to(scale.dtype)
    if needs_bias:
        grad_bias = rows.sum(0).to(grad.dtype)
    return grad_x, None, grad_scale, None, grad_bias


register_gradient("quantized_linear", setup_context=_setup_context, backward=_backward)
