"""Linear layers in float16 or over integers, each product a program shared by equal sizes.

They call the products of `backend`, rather than compile themselves as npu_compiler.nn's do: a
transformer has hundreds of layers of few sizes.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import npu_compiler
from npu_llm.compat.intel_npu_acceleration_library.backend import run_matmul
from npu_llm.compat.intel_npu_acceleration_library.dtypes import NPUDtype, int4, int8
from npu_llm.compat.intel_npu_acceleration_library.nn.autograd import AutogradMatMul
from npu_llm.compat.intel_npu_acceleration_library.quantization import (
    compress_to_i4,
    quantize_tensor,
)
from npu_llm.errors import OptionError

__all__ = ["Linear", "QuantizedLinear", "checked_dtype"]

# A layer with more rows or columns stays torch's.
_LARGEST = 2**17


def checked_dtype(dtype: Any) -> torch.dtype | NPUDtype:
    """Returns a dtype that layers can have.

    Raises:
        OptionError: [unknown-dtype] for another.
    """
    if isinstance(dtype, torch.dtype | NPUDtype) and (
        dtype.is_floating_point or dtype in (int8, int4)
    ):
        return dtype
    raise OptionError(
        "intel_npu_acceleration_library: dtype must be a float dtype, int8 or int4; got "
        f"{dtype!r}. Pass one of these, such as torch.float16.",
        code="unknown-dtype",
    )


class Linear(torch.nn.Module):
    """A linear layer; products are computed in float16 and returned in the input's dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Takes the weights.

        Args:
            weight: (outputs, inputs).
            bias: (outputs,), or None.

        Raises:
            OptionError: [matmul-arguments] for a weight of another shape.
        """
        super().__init__()
        if weight.dim() != 2:
            raise OptionError(
                f"Linear: weight must be (outputs, inputs); got {tuple(weight.shape)}. Reshape it; "
                "a convolution belongs in nn.Conv2d.",
                code="matmul-arguments",
            )
        self.weight = torch.nn.Parameter(weight)
        self.bias = None if bias is None else torch.nn.Parameter(bias)
        self.outC, self.inC = weight.shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns (..., outputs) for x (..., inputs)."""
        if self.training:
            product: torch.Tensor = AutogradMatMul.apply(x, self.weight, None)  # type: ignore[no-untyped-call]
            return product if self.bias is None else product + self.bias.to(product.dtype)
        return _with_bias(run_matmul(x, self.weight), self.bias)

    @staticmethod
    def fromTorch(layer: torch.nn.Linear, dtype: Any = torch.float16) -> torch.nn.Module:
        """Makes a layer of one of torch's; see fromTensor. One with more than 2**17 rows stays."""
        if max(layer.weight.shape) > _LARGEST:
            return layer
        return Linear.fromTensor(layer.weight, layer.bias, dtype)

    @staticmethod
    def fromTensor(
        weight: torch.Tensor, bias: torch.Tensor | None, dtype: Any = torch.float16
    ) -> Linear | QuantizedLinear:
        """Makes a layer of weights in a precision.

        Args:
            weight: (outputs, inputs).
            bias: (outputs,), or None.
            dtype: a float dtype, or int8 or int4, whose integers are rounded down.

        Raises:
            OptionError: [unknown-dtype] for another dtype.
        """
        kind = checked_dtype(dtype)
        weight = weight.detach()
        if kind.is_floating_point:
            stored = kind.torch_dtype if isinstance(kind, NPUDtype) else kind
            return Linear(weight.to(stored), None if bias is None else bias.detach().to(stored))
        is_int4 = kind == int4
        values, scale = quantize_tensor(weight, (-8, 7) if is_int4 else (-128, 127))
        return QuantizedLinear(compress_to_i4(values) if is_int4 else values, scale, bias)


class QuantizedLinear(torch.nn.Module):
    """A linear layer over integers with one scale per output; it does not train."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        """Takes the weights; the scale that it keeps is multiplied by the root of the inputs.

        Args:
            weight: int8 (outputs, inputs), or uint8 (outputs, inputs / 2) with two to a byte.
            scale: (outputs, 1), such that weight = scale * integers.
            bias: (outputs,), or None.

        Raises:
            OptionError: [quantize-weight] for weights of another dtype.
        """
        super().__init__()
        if weight.dtype not in (torch.int8, torch.uint8):
            raise OptionError(
                f"QuantizedLinear: weight must be of int8 or uint8; got {weight.dtype}. Make it by "
                "quantize_tensor.",
                code="quantize-weight",
            )
        self.outC, self.inC = weight.shape
        if weight.dtype == torch.uint8:
            self.inC *= 2
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale * math.sqrt(self.inC))
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach())

    @staticmethod
    def nearest(layer: torch.nn.Linear, dtype: NPUDtype | torch.dtype) -> QuantizedLinear:
        """Makes a layer of one of torch's, rounded to nearest, as that library's compile did."""
        if dtype == int4:
            values, scale = _nearest_int4(layer.weight.detach().float())
            return QuantizedLinear(compress_to_i4(values), scale, layer.bias)
        values, scale = npu_compiler.quantize_tensor(layer.weight.float())
        return QuantizedLinear(values, scale.to(torch.float16), layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns (..., outputs) for x (..., inputs).

        Raises:
            OptionError: [quantized-training] in training mode.
        """
        if self.training:
            raise OptionError(
                "QuantizedLinear: must be in evaluation mode, since integers take no gradient; got "
                "training mode. Call .eval(), or compile with a float dtype.",
                code="quantized-training",
            )
        return _with_bias(run_matmul(x, self.weight, self.scale), self.bias)


def _with_bias(out: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return out if bias is None else out + bias.detach().to(out.dtype)


def _nearest_int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers, and the scales of some that change each row least.

    The sign of a scale makes the row's extreme -8, so that all 16 integers are in use.
    """
    extreme = weight.gather(-1, weight.abs().argmax(-1, keepdim=True))
    extreme = torch.where(extreme == 0, torch.ones_like(extreme), extreme)
    best = torch.zeros_like(extreme, dtype=torch.float16)
    least = torch.full_like(extreme, math.inf)
    for part in torch.linspace(0.8, 1.05, 26).tolist():
        scale = (extreme * part / -8).to(torch.float16)
        error = (_integers(weight, scale) * scale - weight).square().sum(-1, keepdim=True)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return _integers(weight, best).to(torch.int8), best


def _integers(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    # float16 has no scale for the very smallest rows, which become zeros.
    divisor = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (weight / divisor).round().clamp(-8, 7)
