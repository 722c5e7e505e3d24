"""Linear and Conv2d with weights in the precision in which they compute."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from npu_compiler.errors import OptionError
from npu_compiler.nn.module import Module
from npu_compiler.nn.quantized_linear import QuantizedLinear
from npu_compiler.programs.precision import precision_name
from npu_compiler.quantize.weights import MODES
from npu_runtime.public_calls import public_call

__all__ = ["Conv2d", "Linear"]


class Linear(Module):
    """A linear layer of given weights; the input is cast to their dtype, the result back."""

    @public_call
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Takes the weights.

        Args:
            weight: (outputs, inputs).
            bias: (outputs,), or None.
        """
        super().__init__()
        self.weight = nn.Parameter(weight.detach())
        self.bias = None if bias is None else nn.Parameter(bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x @ weight.T + bias of shape (..., outputs) for x (..., inputs)."""
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias).to(x.dtype)

    @staticmethod
    @public_call
    def fromTorch(
        layer: nn.Linear, dtype: torch.dtype | str = torch.float16
    ) -> Linear | QuantizedLinear:
        """Makes a layer of one of torch's; see fromTensor."""
        return Linear.fromTensor(layer.weight, layer.bias, dtype)

    @staticmethod
    @public_call
    def fromTensor(
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype | str = torch.float16,
    ) -> Linear | QuantizedLinear:
        """Makes a layer of weights in a precision.

        Args:
            weight: (outputs, inputs).
            bias: (outputs,), or None.
            dtype: a float dtype, or int8 or int4 for a QuantizedLinear.

        Raises:
            OptionError: [unknown-dtype] for another dtype.
        """
        name = precision_name(dtype)
        if name in MODES:
            return QuantizedLinear.fromTensor(weight, bias, name)
        kind: torch.dtype = getattr(torch, name)
        return Linear(weight.to(kind), None if bias is None else bias.to(kind))


class Conv2d(Module):
    """A convolution of given weights; the input is cast to their dtype, the result back."""

    @public_call
    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        strides: int | tuple[int, ...] = 1,
        padding: int | str | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
    ) -> None:
        """Takes the weights.

        Args:
            weight: (outputs, inputs / groups, height, width).
            bias: (outputs,), or None.
            strides: of both dimensions, or of each.
            padding: zeros around the input, "same" or "valid".
            dilation: steps between the weights.
            groups: parts of the channels that do not mix.
        """
        super().__init__()
        self.weight = nn.Parameter(weight.detach())
        self.bias = None if bias is None else nn.Parameter(bias.detach())
        self.strides, self.padding = strides, padding
        self.dilation, self.groups = dilation, groups

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolves x (batch, inputs, height, width)."""
        given = x.to(self.weight.dtype)
        settings: Any = (self.strides, self.padding, self.dilation, self.groups)
        return F.conv2d(given, self.weight, self.bias, *settings).to(x.dtype)

    @staticmethod
    @public_call
    def fromTorch(layer: nn.Conv2d, dtype: torch.dtype = torch.float16) -> Conv2d:
        """Makes a layer of one of torch's, in a float dtype.

        Raises:
            OptionError: [nn-padding] for a padding mode other than zeros.
        """
        if layer.padding_mode != "zeros":
            raise OptionError(
                f"Conv2d.fromTorch: padding is with zeros; got {layer.padding_mode!r}. Use "
                "npu_compiler.compile, which takes every mode.",
                code="nn-padding",
            )
        bias = None if layer.bias is None else layer.bias.to(dtype)
        settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return Conv2d(layer.weight.to(dtype), bias, *settings)
