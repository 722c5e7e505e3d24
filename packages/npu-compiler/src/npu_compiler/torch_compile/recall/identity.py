"""What a graph from dynamo is, as text: equal for two graphs that are compiled to the same program.

Weights are told apart by npu_compiler.compilation.content, since their bytes belong to the program.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from types import EllipsisType
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch import fx

from npu_compiler.options import CompilerConfig

__all__ = ["graph_identity"]

# Ops of other namespaces may be taken apart by Python code that is not in the key.
_NAMESPACES = ("aten", "prims", "npu")
_PLAIN = (
    bool, int, float, complex, str, type(None), EllipsisType,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
# Where config says only how a program is kept, or what has its effect before the backend is called.
_NO_CONTENT = ("cache_dir", "use_to", "dynamic")


class _Unknown(Exception):
    """Something in the graph has no text that says all about it."""


def graph_identity(
    graph_module: fx.GraphModule, inputs: Sequence[Any], config: CompilerConfig
) -> dict[str, Any] | None:
    """Returns all that decides what becomes of a graph but the weights' values, JSON-like.

    Args:
        graph_module: from dynamo, before anything rewrites it.
        inputs: its example inputs, as a backend is given them.
        config: see CompilerConfig.

    Returns:
        None where something is not known well enough: sizes that vary, tensors inside the graph,
        tensor subclasses, functions and ops that are not torch's or ours, modes that see each call.
    """
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return None
    try:
        lines = [*_lines(graph_module.graph, inputs)]
    except _Unknown:
        return None
    options = {
        field.name: repr(getattr(config, field.name))
        for field in fields(config)
        if field.name not in _NO_CONTENT
    }
    return {"graph": lines, "options": options, "state": _state()}


def _state() -> list[str]:
    """What torch reads beside a graph when it traces."""
    facts = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in ("cpu", "npu")
        ],
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_flash_sdp_enabled(),
        sorted(
            (key, repr(value)) for key, value in functorch_config.save_config_portable().items()
        ),
    )
    return [repr(fact) for fact in facts]


def _lines(graph: fx.Graph, inputs: Sequence[Any]) -> Iterator[str]:
    names: dict[fx.Node, str] = {}
    values = iter(inputs)
    for node in graph.nodes:
        names[node] = f"%{len(names)}"
        if node.op == "placeholder":
            yield _input(node, next(values, None))
            continue
        if node.op == "output":
            called = "return"
        elif node.op == "call_method":
            called = f".{node.target}"
        elif node.op == "call_function":
            called = _function(node.target)
        else:
            raise _Unknown  # a tensor or a module of the graph's own
        yield f"{called}({_text(node.args, names)}, {_text(node.kwargs, names)})"
    if next(values, None) is not None:
        raise _Unknown


def _input(node: fx.Node, value: Any) -> str:
    traced = node.meta.get("example_value")
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or not isinstance(
        traced, torch.Tensor
    ):
        raise _Unknown
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        raise _Unknown
    if not all(type(size) is int for size in (*traced.shape, *traced.stride())):
        raise _Unknown
    facts = (
        value.dtype,
        tuple(value.shape),
        value.stride(),
        value.storage_offset(),
        str(value.device),
        value.requires_grad,
        value.is_leaf,
        value.is_inference(),
        type(value).__name__,
        # dynamo's sign for parameters and buffers.
        repr((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")),
    )
    return f"input {facts!r}"


def _function(target: Any) -> str:
    """The name of a function, if it leads to this function and to no one's replacement of it."""
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace not in _NAMESPACES:
            raise _Unknown
        return f"op {target}"
    name = getattr(target, "__name__", "")
    if getattr(operator, name, None) is target:
        return f"operator.{name}"
    for home in (torch, torch._C._nn, torch.nn.functional, torch._C, torch.special):
        is_own = getattr(target, "__module__", None) in (None, home.__name__, "torch.functional")
        if is_own and getattr(home, name, None) is target:
            return f"{home.__name__}.{name}"
    raise _Unknown


def _text(value: Any, names: Mapping[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, slice):
        return f"slice({_text((value.start, value.stop, value.step), names)})"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_text(item, names) for item in value)
        return f"{'list' if isinstance(value, list) else 'tuple'}({inside})"
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise _Unknown
        return "{" + ", ".join(f"{key!r}: {_text(one, names)}" for key, one in value.items()) + "}"
    if type(value) not in _PLAIN:
        raise _Unknown
    return repr(value)
