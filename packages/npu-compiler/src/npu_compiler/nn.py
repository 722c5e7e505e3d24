"""Modules that compile themselves: layers, and linear layers with quantized weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from npu_compiler.errors import OptionError
from npu_compiler.options import CompilerConfig
from npu_compiler.programs.precision import precision_name
from npu_compiler.quantize.weights import GROUP_SIZES, MODES, fitting_group, quantize_weight
from npu_compiler.torch_compile.backend import compile_following
from npu_ops.fused.quantized_linear import pack_int4
from npu_runtime.public_calls import public_call

__all__ = [
    "Conv2d",
    "Linear",
    "Module",
    "NPUModuleWrapper",
    "QuantizedLinear",
    "convert_to_npu_module",
    "quantize_model",
]


class Module(nn.Module):
    """A module that runs programs when called; write forward as for torch.nn.Module.

    Grad mode decides as under torch.compile: with gradients there are forward and backward
    programs; without them the weights are constants. Inside another compiled module it is part of
    that module's graph.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module; compiles it first if needed."""
        # A copy or an unpickled module has no compiled call yet.
        if self._compiled_call_impl is None and not torch.compiler.is_compiling():
            compile_following(self, CompilerConfig())
        return super().__call__(*args, **kwargs)


class NPUModuleWrapper(Module):
    """Wraps a module so that its calls run programs.

    It has the same parameters, buffers and children under the same names, so that its state_dict
    is the module's.
    """

    module: nn.Module

    @public_call
    def __init__(self, module: nn.Module) -> None:
        """Wraps a module.

        Args:
            module: any; it is wrapped, not copied.
        """
        super().__init__()
        self._share(module)

    def _share(self, module: nn.Module) -> None:
        # Bypasses nn.Module's assignment, which would register a child and prefix all names.
        own = self.__dict__
        own["module"] = module
        for registry in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[registry] = module.__dict__[registry]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._share(self.module)

    def train(self, mode: bool = True) -> NPUModuleWrapper:
        """Sets training or evaluation mode of the module."""
        self.module.train(mode)
        return super().train(mode)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        return self.module(*args, **kwargs)


@public_call
def convert_to_npu_module(module: nn.Module) -> NPUModuleWrapper:
    """Returns a module that runs programs, in evaluation mode, with the names of the given one."""
    wrapped = NPUModuleWrapper(module)
    wrapped.eval()
    return wrapped


class QuantizedLinear(Module):
    """A linear layer with integer weights; gradients flow to its input and its bias."""

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
            OptionError: [quantize-weight] when shapes or dtypes do not match, [nn-weight] for a
                bias that is not of floats.
        """
        super().__init__()
        self.bits = (8 if weight.dtype is torch.int8 else 4) if bits is None else bits
        scales = scale.unsqueeze(-1) if scale.dim() == 1 else scale
        _check(weight, scales, self.bits)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scales)
        self.register_buffer("zero_point", zero_point)
        self.bias = None if bias is None else _parameter("QuantizedLinear", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x @ dequantized weight.T + bias, (..., outputs) for x (..., inputs)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        result: torch.Tensor = torch.ops.npu.quantized_linear(
            x, self.weight, self.scale, self.zero_point, bias, bits=self.bits
        )
        return result

    def extra_repr(self) -> str:
        """Returns the text inside the parentheses of repr()."""
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
        """Quantizes a float weight to nearest, on the weight's device.

        Args:
            weight: (outputs, inputs), a float dtype.
            bias: (outputs,), or None.
            dtype: int8; or int4, in groups if a group size divides the rows.
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


def _parameter(owner: str, tensor: torch.Tensor) -> nn.Parameter:
    """Returns a parameter with a tensor's values; OptionError [nn-weight] if not floats."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise _not_floats(owner, tensor)
    return nn.Parameter(tensor.detach())


def _cast(owner: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor in another dtype; OptionError [nn-weight] for torch's quantized tensors."""
    if tensor.is_quantized:
        raise _not_floats(owner, tensor)
    return tensor.to(dtype)


def _not_floats(owner: str, tensor: torch.Tensor) -> OptionError:
    return OptionError(
        f"{owner}: weight and bias must be floats, got {tensor.dtype}. Pass tensor.dequantize() of "
        "a quantized tensor, or tensor.float().",
        code="nn-weight",
    )


def _check(weight: torch.Tensor, scale: torch.Tensor, bits: int) -> None:
    kinds = {8: (torch.int8, torch.uint8), 4: (torch.uint8,)}.get(bits, ())
    fits = weight.dim() == 2 and scale.dim() == 2 and scale.shape[0] == weight.shape[0]
    if weight.dtype not in kinds or not fits:
        raise OptionError(
            "QuantizedLinear: `weight` must be int8 or uint8 of shape (outputs, inputs) with bits "
            "8, or "
            f"uint8 (outputs, inputs / 2) with bits 4, and `scale` (outputs, groups), got "
            f"{weight.dtype} {tuple(weight.shape)}, bits {bits}, scale {tuple(scale.shape)}. "
            "Create them with quantize_tensor and compress_to_i4.",
            code="quantize-weight",
        )


@public_call
def quantize_model(
    model: nn.Module,
    dtype: torch.dtype | str,
    *,
    group_size: int = 64,
    symmetric: bool = True,
    skip: Callable[[str, nn.Linear], bool] | None = None,
) -> nn.Module:
    """Replaces each torch.nn.Linear of a module by a QuantizedLinear, round to nearest.

    The state_dict then holds the integers and scales under the layer's name. With int4, rows that
    no group size up to `group_size` divides get 8 bits and one scale.

    Args:
        model: changed in place; for a single Linear the new layer is returned.
        dtype: torch.int8 or "int8" (one scale per output), or "int4" (one per group).
        group_size: 32, 64 or 128, for int4.
        symmetric: without zero points; with them the error is slightly smaller.
        skip: called with name and layer; True keeps the layer, as for a head.

    Returns:
        The module.

    Raises:
        OptionError: [quantize-mode] or [quantize-group] for a value that is not listed above.
    """
    mode = str(dtype).removeprefix("torch.")
    if mode not in MODES:
        raise OptionError(
            f"quantize_model: `dtype` must be one of {', '.join(MODES)}, got {dtype!r}. Choose "
            "one.",
            code="quantize-mode",
        )
    if group_size not in GROUP_SIZES:
        raise OptionError(
            f"quantize_model: `group_size` must be one of 32, 64, 128, got {group_size!r}. Choose "
            "one.",
            code="quantize-group",
        )

    def made(name: str, layer: nn.Linear) -> nn.Module:
        if skip is not None and skip(name, layer):
            return layer
        return QuantizedLinear.fromTorch(layer, mode, group_size=group_size, symmetric=symmetric)

    if type(model) is nn.Linear:
        return made("", model)
    replaced: dict[nn.Module, nn.Module] = {}
    for name, parent in list(model.named_modules()):
        for child_name, child in list(parent._modules.items()):  # a shared child under each name
            if child is None or type(child) is not nn.Linear:
                continue
            if child not in replaced:
                replaced[child] = made(f"{name}.{child_name}".lstrip("."), child)
            setattr(parent, child_name, replaced[child])
    return model


class Linear(Module):
    """A linear layer that computes in the weights' dtype; the result has the input's dtype."""

    @public_call
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Takes the weights.

        Args:
            weight: (outputs, inputs).
            bias: (outputs,), or None.
        """
        super().__init__()
        self.weight = _parameter("Linear", weight)
        self.bias = None if bias is None else _parameter("Linear", bias)

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
            OptionError: [unknown-dtype] for another dtype, [nn-weight] for quantized tensors.
        """
        name = precision_name(dtype)
        if name in MODES:
            return QuantizedLinear.fromTensor(weight, bias, name)
        kind: torch.dtype = getattr(torch, name)
        return Linear(
            _cast("Linear", weight, kind), None if bias is None else _cast("Linear", bias, kind)
        )


class Conv2d(Module):
    """A convolution that computes in the weights' dtype; the result has the input's dtype."""

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
            strides: one for both dimensions, or one for each.
            padding: zeros around the input, "same" or "valid".
            dilation: steps between the weights.
            groups: number of channel groups, as in torch.
        """
        super().__init__()
        self.weight = _parameter("Conv2d", weight)
        self.bias = None if bias is None else _parameter("Conv2d", bias)
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
                f"Conv2d.fromTorch: `padding_mode` must be 'zeros', got {layer.padding_mode!r}. "
                "Use "
                "npu_compiler.compile, which supports every mode.",
                code="nn-padding",
            )
        bias = None if layer.bias is None else _cast("Conv2d", layer.bias, dtype)
        settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return Conv2d(_cast("Conv2d", layer.weight, dtype), bias, *settings)
