"""QuantizedLinear: a linear layer that holds integers and scales."""

from __future__ import annotations

import torch
from torch import nn

from npu_compiler.errors import OptionError
from npu_compiler.nn.module import Module
from npu_compiler.quantize.weights import fitting_group, quantize_weight
from npu_ops.fused.quantized_linear import pack_int4
from npu_runtime.public_calls import public_call

__all__ = ["QuantizedLinear"]


class QuantizedLinear(Module):
    """A linear layer over integers; gradients flow to its input and its bias."""

    weight: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None

    @public_call
    def __init__(
        self,
        weight: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None = None,
        zero_point: torch.Tensor | None = None,
        *,
        bits: int | None = None,
    ) -> None:
        """Takes the weights, as npu::quantized_linear does.

        Args:
            weight: (outputs, inputs) of int8, or of uint8 with bits=8; of 4 bits uint8 (outputs,
                inputs / 2) from compress_to_i4.
            scale: (outputs, groups), also (outputs,).
            bias: (outputs,), or None.
            zero_point: of the shape of scale and the dtype of weight, or None.
            bits: 8 or 4; by default 8 for int8 and 4 for uint8.

        Raises:
            OptionError: [quantize-weight] when these do not fit together.
        """
        super().__init__()
        self.bits = (8 if weight.dtype is torch.int8 else 4) if bits is None else bits
        scales = scale.unsqueeze(-1) if scale.dim() == 1 else scale
        _check(weight, scales, self.bits)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scales)
        self.register_buffer("zero_point", zero_point)
        self.bias = None if bias is None else nn.Parameter(bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x @ dequantized weight.T + bias, (..., outputs) for x (..., inputs)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        result: torch.Tensor = torch.ops.npu.quantized_linear(
            x, self.weight, self.scale, self.zero_point, bias, bits=self.bits
        )
        return result

    def extra_repr(self) -> str:
        """What repr() shows inside the brackets."""
        outputs, columns = self.weight.shape
        inputs = columns * (8 // self.bits)
        return f"{inputs}, {outputs}, bits={self.bits}, groups={self.scale.shape[1]}"

    @staticmethod
    @public_call
    def fromTorch(
        layer: nn.Linear,
        dtype: torch.dtype | str = torch.int8,
        *,
        group_size: int = 64,
        symmetric: bool = True,
    ) -> QuantizedLinear:
        """Makes a layer of one of torch's; see fromTensor."""
        return QuantizedLinear.fromTensor(
            layer.weight, layer.bias, dtype, group_size=group_size, symmetric=symmetric
        )

    @staticmethod
    @public_call
    def fromTensor(
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype | str = torch.int8,
        *,
        group_size: int = 64,
        symmetric: bool = True,
    ) -> QuantizedLinear:
        """Makes a layer of a float weight, round to nearest, where the weight is.

        Args:
            weight: (outputs, inputs), a float dtype.
            bias: (outputs,), or None.
            dtype: int8, or int4 in groups where a group size divides the rows.
            group_size: the largest group of int4.
            symmetric: without zero points.
        """
        is_int4 = str(dtype).removeprefix("torch.") == "int4"
        group = fitting_group(weight.shape[1], group_size) if is_int4 else None
        bits = 4 if group is not None else 8
        home = weight.device
        stored = quantize_weight(
            weight.detach().cpu(), bits=bits, group_size=group, symmetric=symmetric
        )
        values = stored.values.flatten(1)
        if bits == 4:
            values = pack_int4(values.to(torch.int16) + 8 if symmetric else values)
        zero = None if stored.zero_point is None else stored.zero_point[..., 0].to(home)
        return QuantizedLinear(
            values.to(home), stored.scale[..., 0].to(home), bias, zero, bits=bits
        )


def _check(weight: torch.Tensor, scale: torch.Tensor, bits: int) -> None:
    kinds = {8: (torch.int8, torch.uint8), 4: (torch.uint8,)}.get(bits, ())
    fits = weight.dim() == 2 and scale.dim() == 2 and scale.shape[0] == weight.shape[0]
    if weight.dtype not in kinds or not fits:
        raise OptionError(
            f"QuantizedLinear: weight is int8 or uint8 of shape (outputs, inputs) with bits 8, or "
            f"uint8 (outputs, inputs / 2) with bits 4, and scale is (outputs, groups); got "
            f"{weight.dtype} {tuple(weight.shape)}, bits {bits}, scale {tuple(scale.shape)}. "
            "Make them by quantize_tensor and compress_to_i4.",
            code="quantize-weight",
        )
