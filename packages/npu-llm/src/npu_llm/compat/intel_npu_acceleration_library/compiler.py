"""Compiles a module's layers, and gives `.to("npu")` that library's meaning.

Layers run on the device, in float16 or as integers. In that library `npu` was not a torch device:
tensors stayed on the host, and a moved module ran its calls on the NPU. Calls from our packages and
from torch keep torch's meaning.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import fx
from torch._dynamo import trace_rules
from torch._dynamo.backends import registry

from npu_compiler.nn import quantize_model
from npu_compiler.torch_compile import backend
from npu_llm.compat.alias import absent_name
from npu_llm.compat.intel_npu_acceleration_library.dtypes import NPUDtype, int4, int8, warn_once
from npu_llm.compat.intel_npu_acceleration_library.nn import Conv2d, Linear, QuantizedLinear
from npu_llm.compat.intel_npu_acceleration_library.nn.layers import (
    Module,
    checked_dtype,
    convert_to_npu_module,
)
from npu_llm.errors import OptionError

__all__ = [
    "CompilerConfig",
    "checked_config",
    "compile",
    "enable_npu_device",
    "lower_linear",
    "npu",
]


@dataclass
class CompilerConfig:
    """Options of a model's compilation.

    Attributes:
        use_to: whether to compile the whole model to programs, like `.to("npu")`, instead of its
            layers alone.
        dtype: a float dtype, which always computes in float16, int8 or int4.
        training: whether to keep training mode, with gradients; integers do not support it.
    """

    use_to: bool = False
    dtype: Any = torch.float16
    training: bool = False


def compile(  # noqa: A001  # the name its users know
    model: torch.nn.Module, config: CompilerConfig | None = None, **options: Any
) -> torch.nn.Module:
    """Compiles a model in place: its linear layers and convolutions run on the device.

    Args:
        model: any module.
        config: the options; the defaults if omitted.
        options: fields of CompilerConfig by name, as in early releases of that library.

    Returns:
        The model; with use_to a wrapper of it, and for a single layer its replacement.

    Raises:
        OptionError: [unknown-dtype] for an unsupported dtype; [compat-argument] for a value that is
            not a module or a CompilerConfig, or an unknown field.
    """
    if not isinstance(model, torch.nn.Module):
        raise OptionError(
            f"compile: `model` must be a torch.nn.Module, got {type(model).__name__}. For a "
            "function, call torch.compile.",
            code="compat-argument",
        )
    config = checked_config(config, options)
    dtype = checked_dtype(config.dtype)
    if dtype.is_floating_point and dtype != torch.float16:
        warn_once("float16")
    with torch.no_grad():
        if not config.use_to:
            model = lower_linear(model, dtype)
        else:
            if not dtype.is_floating_point:
                model = quantize_model(model, "int4" if dtype == int4 else "int8")
            model = convert_to_npu_module(model)
    is_training = config.training and dtype.is_floating_point
    return model if is_training else model.eval()


def checked_config(config: Any, options: Mapping[str, Any]) -> CompilerConfig:
    """Returns a configuration with some fields replaced.

    Args:
        config: a configuration, or None; or a dtype, as in early releases of that library.
        options: fields by name.

    Raises:
        OptionError: [compat-argument] for another config, or unknown fields.
    """
    if isinstance(config, torch.dtype | NPUDtype):
        config = CompilerConfig(dtype=config)
    names = [field.name for field in fields(CompilerConfig)]
    others = sorted(set(options) - set(names))
    if others or not isinstance(config, CompilerConfig | None):
        raise OptionError(
            f"compile: `config` must be a CompilerConfig, or its fields {', '.join(names)} by "
            f"name, got {', '.join(others) or type(config).__name__}. Pass those.",
            code="compat-argument",
        )
    return replace(config or CompilerConfig(), **options)


def npu(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any
) -> Callable[..., Any]:
    """Backend "npu" of torch.compile: its linear layers take inputs of any float dtype.

    Args:
        graph_module: the graph captured by dynamo; modified in place.
        example_inputs: its inputs.
        options: see npu_compiler.torch_compile.backend.npu.
    """
    for node in graph_module.graph.find_nodes(
        op="call_function", target=torch.nn.functional.linear
    ):
        given, weight = (_dtype_of(value) for value in node.args[:2])
        if given != weight and given is not None and weight is not None:
            _compute_in(node, weight)
    graph_module.recompile()
    return backend.npu(graph_module, example_inputs, **options)


def _dtype_of(value: Any) -> torch.dtype | None:
    example = value.meta.get("example_value") if isinstance(value, fx.Node) else None
    return example.dtype if isinstance(example, torch.Tensor) else None


def _compute_in(node: fx.Node, dtype: torch.dtype) -> None:
    """Casts a layer's input, and its result to the dtype that dynamo recorded."""
    graph, result = node.graph, _dtype_of(node)
    with graph.inserting_before(node):
        node.update_arg(0, graph.call_method("to", (node.args[0], dtype)))
    if result not in (None, dtype):
        with graph.inserting_after(node):
            cast = graph.call_method("to", (node, result))
        node.replace_all_uses_with(cast, lambda user: user is not cast)


def lower_linear(model: torch.nn.Module, dtype: Any = torch.float16) -> torch.nn.Module:
    """Replaces a model's linear layers and convolutions in place, except subclasses.

    Args:
        model: any module except an NPUModule, which compiles itself.
        dtype: a float dtype for float16 layers, or int8 or int4 for the linear ones. Under int4 a
            layer with an odd number of inputs is int8, because a byte contains two values.
    """

    def lowered(layer: torch.nn.Module) -> torch.nn.Module:
        if type(layer) is torch.nn.Conv2d:
            return Conv2d.fromTorch(layer)
        if type(layer) is not torch.nn.Linear:
            return layer
        if dtype.is_floating_point:
            return Linear.fromTorch(layer)
        return QuantizedLinear.nearest(layer, int8 if layer.in_features % 2 else dtype)

    return _replaced(model, lowered)


def _replaced(model: torch.nn.Module, make: Any) -> torch.nn.Module:
    """Replaces modules by a function's results, each once for all occurrences."""
    known: dict[torch.nn.Module, torch.nn.Module] = {}
    for parent in list(model.modules()):
        if isinstance(parent, Module):
            continue
        for name, child in list(parent._modules.items()):  # a shared child under each name
            if child is not None:
                known.setdefault(child, make(child))
                parent._modules[name] = known[child].train(child.training)
    made: torch.nn.Module = make(model)
    return made


_OURS = frozenset(
    ("npu_command", "npu_compiler", "npu_llm", "npu_ops", "npu_profiler", "npu_runtime", "torch")
)


@functools.cache
def enable_npu_device() -> None:
    """Gives `.to("npu")`, and torch.compile's backend "npu", that library's meaning here."""
    # Dynamo traces through our functions into the originals, which it lists once.
    trace_rules.get_torch_obj_rule_map()
    trace_rules.get_tensor_method()
    if "npu" not in registry._COMPILER_FNS:  # a program that compiled before keeps the original
        registry.register_backend(compiler_fn=npu, name="npu")
    torch.Tensor.to = _tensor_to(torch.Tensor.to)  # type: ignore[method-assign]
    torch.nn.Module.to = _module_to(torch.nn.Module.to)  # type: ignore[method-assign]


def _tensor_to(real: Any) -> Any:
    @functools.wraps(real)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not _name_npu(args, kwargs) or _is_ours(sys._getframe(1)):
            moved: torch.Tensor = real(self, *args, **kwargs)
            return moved
        if any(isinstance(value, str) for value in (*args, kwargs.get("device"))):
            warn_once("tensor-to")  # a device object usually comes from a model's internals
        args, kwargs = _without_npu(args, kwargs)
        kept: torch.Tensor = real(self, *args, **kwargs) if args or kwargs else self
        return kept

    return to


def _module_to(real: Any) -> Any:
    @functools.wraps(real)
    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        if not _name_npu(args, kwargs) or _is_ours(sys._getframe(1)):
            moved: torch.nn.Module = real(self, *args, **kwargs)
            return moved
        args, kwargs = _without_npu(args, kwargs)
        if args or kwargs:
            real(self, *args, **kwargs)
        return self if isinstance(self, Module) else convert_to_npu_module(self)

    return to


def _name_npu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(map(_is_npu, args)) or ("device" in kwargs and _is_npu(kwargs["device"]))


def _is_npu(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower().partition(":")[0] == "npu"
    return isinstance(value, torch.device) and value.type == "npu"


def _without_npu(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    kept = {name: value for name, value in kwargs.items() if not _is_npu(value)}
    return tuple(value for value in args if not _is_npu(value)), kept


def _is_ours(frame: Any) -> bool:
    """Whether the caller is one of our packages or torch, not the user's program."""
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in _OURS


def __getattr__(name: str) -> Any:
    raise absent_name(__name__, name)
