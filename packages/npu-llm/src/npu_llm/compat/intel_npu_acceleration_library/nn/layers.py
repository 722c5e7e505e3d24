"""Layers in float16 or with integers, and modules that run programs on `npu`.

Layers call the products of `backend`, unlike npu_compiler.nn's, which compile separately: a
transformer has hundreds of layers of few sizes, and equal sizes share a program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
import torch.nn.functional as F

import npu_compiler
import npu_compiler.nn
from npu_llm.compat.alias import absent_name
from npu_llm.compat.intel_npu_acceleration_library.backend import (
    Convolution,
    NNFactory,
    run_factory,
    run_matmul,
)
from npu_llm.compat.intel_npu_acceleration_library.backend import Tensor as FactoryTensor
from npu_llm.compat.intel_npu_acceleration_library.dtypes import NPUDtype, int4, int8
from npu_llm.compat.intel_npu_acceleration_library.quantization import (
    compress_to_i4,
    quantize_tensor,
)
from npu_llm.errors import OptionError

__all__ = [
    "AutogradMatMul",
    "Conv2d",
    "Linear",
    "Module",
    "NPUContextManager",
    "NPUModuleWrapper",
    "QuantizedLinear",
    "checked_dtype",
    "convert_to_npu_module",
]

# A layer with more rows or columns remains torch's.
_LARGEST = 2**17


def checked_dtype(dtype: Any) -> torch.dtype | NPUDtype:
    """Returns a dtype that layers support.

    Raises:
        OptionError: [unknown-dtype] for an unsupported dtype.
    """
    if isinstance(dtype, torch.dtype | NPUDtype) and (
        dtype.is_floating_point or dtype in (int8, int4)
    ):
        return dtype
    raise OptionError(
        "intel_npu_acceleration_library: `dtype` must be a float dtype, int8 or int4, got "
        f"{dtype!r}. Pass one of these, such as torch.float16.",
        code="unknown-dtype",
    )


class Linear(torch.nn.Module):
    """A linear layer; products are computed in float16 and returned in the input's dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Stores the weights.

        Args:
            weight: (outputs, inputs).
            bias: (outputs,), or None.

        Raises:
            OptionError: [matmul-arguments] for a weight of another shape.
        """
        super().__init__()
        if weight.dim() != 2:
            raise OptionError(
                f"Linear: `weight` must be (outputs, inputs), got {tuple(weight.shape)}. Reshape "
                "it; a convolution belongs in nn.Conv2d.",
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
        """Converts a layer of torch; see fromTensor. One with more than 2**17 rows is unchanged."""
        if max(layer.weight.shape) > _LARGEST:
            return layer
        return Linear.fromTensor(layer.weight, layer.bias, dtype)

    @staticmethod
    def fromTensor(
        weight: torch.Tensor, bias: torch.Tensor | None, dtype: Any = torch.float16
    ) -> Linear | QuantizedLinear:
        """Creates a layer from weights in a precision.

        Args:
            weight: (outputs, inputs).
            bias: (outputs,), or None.
            dtype: a float dtype, or int8 or int4, with integers rounded down.

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
    """A linear layer with integer weights and one scale per output; does not support training."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        """Stores the weights; the stored scale is multiplied by the root of the inputs.

        Args:
            weight: int8 (outputs, inputs), or uint8 (outputs, inputs / 2) with two values per byte.
            scale: (outputs, 1), such that weight = scale * integers.
            bias: (outputs,), or None.

        Raises:
            OptionError: [quantize-weight] for weights of another dtype.
        """
        super().__init__()
        if weight.dtype not in (torch.int8, torch.uint8):
            raise OptionError(
                f"QuantizedLinear: `weight` must be of int8 or uint8, got {weight.dtype}. Create "
                "it with quantize_tensor.",
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
        """Converts a layer of torch, rounded to nearest, like that library's compile."""
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
                "`QuantizedLinear` must be in evaluation mode, since integers have no gradient, "
                "got training mode. Call .eval(), or compile with a float dtype.",
                code="quantized-training",
            )
        return _with_bias(run_matmul(x, self.weight, self.scale), self.bias)


def _with_bias(out: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return out if bias is None else out + bias.detach().to(out.dtype)


def _nearest_int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns integers, and scales that minimize each row's error.

    The sign of a scale makes the row's extreme -8, so that all 16 integers are used.
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
    # float16 cannot represent scales of the smallest rows, which become zeros.
    divisor = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (weight / divisor).round().clamp(-8, 7)


class AutogradMatMul(torch.autograd.Function):
    """x (..., inputs) @ w (outputs, inputs).T, computed in float16."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns (..., outputs); a scale belongs to integer weights, which have no gradient."""
        ctx.save_for_backward(x, w)
        product: torch.Tensor = run_matmul(x, w, scale)
        return product

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of x and w."""
        x, w = ctx.saved_tensors
        of_x = of_w = None
        rows = grad.reshape(-1, grad.shape[-1])
        if ctx.needs_input_grad[0]:
            of_x = run_matmul(rows, w.T).reshape(x.shape).to(x.dtype)
        if ctx.needs_input_grad[1]:
            columns = x.reshape(-1, x.shape[-1]).T
            of_w = run_matmul(rows.T, columns.to(w.dtype)).to(w.dtype)
        return of_x, of_w, None


Sizes = int | Sequence[int]


class Conv2d(torch.nn.Module):
    """A convolution; in training mode it is torch's, on the host."""

    def __init__(
        self,
        weights: torch.Tensor,
        bias: torch.Tensor | None = None,
        strides: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> None:
        """Stores the weights.

        Args:
            weights: (outputs, inputs / groups, height, width).
            bias: (outputs,), or None.
            strides: one for both dimensions, or one for each.
            padding: zero padding of the input.
            dilation: spacing of the weights.
            groups: number of independent channel groups.
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
        """Convolves x (batch, inputs, height, width), or without the batch, as in torch."""
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
        """Converts a layer of torch.

        A layer with non-zero padding mode, or padding by name, is unchanged.
        """
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            return layer
        bias = None if layer.bias is None else layer.bias.to(dtype)
        sizes = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return Conv2d(layer.weight.to(dtype), bias, *sizes)


class Module(npu_compiler.nn.Module):
    """A module that runs programs when called, without gradients except in training mode.

    Args:
        profile: ignored; use `npu-profiler trace`.
    """

    def __init__(self, profile: bool = False) -> None:
        super().__init__()
        self.profile = profile

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        if self.training or torch.compiler.is_compiling():
            return super().__call__(*args, **kwargs)
        with torch.no_grad():
            return super().__call__(*args, **kwargs)


class NPUModuleWrapper(npu_compiler.nn.NPUModuleWrapper, Module):
    """Wraps another module to run programs; see npu_compiler.nn.NPUModuleWrapper."""


def convert_to_npu_module(module: torch.nn.Module) -> NPUModuleWrapper:
    """Returns a module in evaluation mode that runs programs, with the given one's names."""
    wrapped = NPUModuleWrapper(module)
    wrapped.eval()
    return wrapped


class NPUContextManager(NNFactory):
    """A graph built in a `with` block and compiled at its end."""

    def __enter__(self) -> Self:
        """Returns the graph."""
        return self

    def Tensor(self, shape: Sequence[int], dtype: Any = torch.float16) -> FactoryTensor:
        """Adds an input."""
        return self.parameter(shape, dtype=dtype)

    def Constant(self, tensor: torch.Tensor) -> FactoryTensor:
        """Adds a constant."""
        added: FactoryTensor = self.constant(tensor)
        return added

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Compiles the graph, unless the block raised."""
        if kind is None:
            self.compile()


def __getattr__(name: str) -> Any:
    raise absent_name(__name__, name)
