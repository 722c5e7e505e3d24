"""Conv2d: a convolution in float16 as a program shared by equal sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from npu_llm.compat.absent import absent_name
from npu_llm.compat.intel_npu_acceleration_library.backend import Convolution, run_factory

__all__ = ["Conv2d"]

Sizes = int | Sequence[int]


class Conv2d(torch.nn.Module):
    """A convolution; in training mode it is torch's own, on the host."""

    def __init__(
        self,
        weights: torch.Tensor,
        bias: torch.Tensor | None = None,
        strides: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> None:
        """Takes the weights.

        Args:
            weights: (outputs, inputs / groups, height, width).
            bias: (outputs,), or None.
            strides: of both dimensions, or of each.
            padding: zeros around the input.
            dilation: steps between the weights.
            groups: parts of the channels that do not mix.
        """
        super().__init__()
        self.weight = torch.nn.Parameter(weights.detach())
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach())
        self._sizes: dict[str, Any] = {
            "strides": strides,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolves x (batch, inputs, height, width), or one without the batch, as torch's."""
        if x.dim() == 3:
            result: torch.Tensor = self(x[None])
            return result[0]
        if self.training:
            sizes: Any = tuple(self._sizes.values())
            return F.conv2d(x.to(self.weight.dtype), self.weight, self.bias, *sizes).to(x.dtype)
        weight, groups = self.weight, self._sizes["groups"]
        if groups > 1:
            weight = weight.unflatten(0, (groups, -1))  # type: ignore[no-untyped-call]
        kind = partial(Convolution, weights_shape=weight.shape, bias=None, **self._sizes)
        result = run_factory(x, [weight], kind)
        if self.bias is None:
            return result
        return result + self.bias.detach().to(x.dtype).view(-1, 1, 1)

    @staticmethod
    def fromTorch(layer: torch.nn.Conv2d, dtype: torch.dtype = torch.float16) -> torch.nn.Module:
        """Makes a layer of one of torch's.

        A padding mode other than zeros, and padding by name, stay torch's.
        """
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            return layer
        bias = None if layer.bias is None else layer.bias.to(dtype)
        sizes = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return Conv2d(layer.weight.to(dtype), bias, *sizes)


def __getattr__(name: str) -> Any:
    raise absent_name(__name__, name)
