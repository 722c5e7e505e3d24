"""Decides whether one node of a graph can be lowered, with a reason if not.

A pure function of the node: it touches neither the graph nor a device.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

import npu_runtime
from npu_compiler.graph.channels_last import VARYING_IMAGE
from npu_compiler.graph.nodes import is_effectful, is_mutation, op_name
from npu_compiler.graph.origins import is_kept_float32
from npu_compiler.lowering import find_converter, missing_converter
from npu_compiler.lowering.context import NARROW_DTYPES, is_float, refusal_for_dtype
from npu_compiler.lowering.frontend import frontend_refusal
from npu_compiler.lowering.integer_widths import takes_narrow_integers
from npu_compiler.lowering.registry import bind_arguments
from npu_compiler.options import CompilerConfig

__all__ = [
    "HOST_DUTIES",
    "HOST_IS_BETTER",
    "INPUT_WRITE",
    "is_compute",
    "refusal",
    "takes_from_host",
]


OUTPUT_VIEW = "a view of a result, taken on the host"
INPUT_WRITE = "writes a result into an input, done on the host"
# Reasons for calls that could be lowered: reported, but not an error under strict.
HOST_IS_BETTER = "its kernel on the host's cores is faster"

# Reasons for calls that never belong to a program: neither a fallback nor an error under strict.
HOST_DUTIES = frozenset({OUTPUT_VIEW, INPUT_WRITE})


def refusal(node: fx.Node, config: CompilerConfig, *, with_frontend: bool = False) -> str | None:
    """Returns the reason why a call cannot be lowered, or None if it can.

    `with_frontend` permits OpenVINO's frontend for calls without a converter.
    """
    if op_name(node.target) in config.fallback_ops:
        return "listed in fallback_ops"
    if is_kept_float32(node):
        return "named by keep_float32"
    if node.meta.get("npu_is_output_view"):
        return OUTPUT_VIEW
    if is_mutation(node):
        return INPUT_WRITE if _writes_input(node) else _other_write(node, config)
    if config.is_for_vendor:
        return _vendor_refusal(node, str(config.target))
    if VARYING_IMAGE in node.meta:
        return HOST_IS_BETTER
    row = find_converter(node.target)
    if row is None:
        if is_effectful(node):
            return "draws random numbers or has another side effect"
        return _missing(node, with_frontend=with_frontend, nan=config.nan)
    is_narrow = row.quantized or takes_narrow_integers(node)
    for meta in _tensors(node):
        if (reason := _tensor_refusal(meta, takes_narrow=is_narrow)) is not None:
            return reason
    better = row.host_is_better
    if (better if isinstance(better, bool) else better(node)) and not takes_from_host(config):
        return HOST_IS_BETTER
    if row.rule is not None:
        return row.rule(node, **bind_arguments(node))
    return None


def takes_from_host(config: CompilerConfig) -> bool:
    """Whether programs include calls for which the host's cores have a better kernel.

    True if the device does not compute on the host's cores, or on request.
    """
    is_asked_for = config.target not in (None, "kernels")
    return is_asked_for or not npu_runtime.device_info().device.startswith("CPU")


def _vendor_refusal(node: fx.Node, name: str) -> str | None:
    from npu_compiler.target_compiler import find_target, vendor_of  # late: few graphs have one

    if is_effectful(node):
        return "draws random numbers or has another side effect"
    refused = [_tensor_refusal(meta, takes_narrow=True) for meta in _tensors(node)]
    target = find_target(name, graphs=True)
    return next(filter(None, refused), None) or vendor_of(target).refusal(node, target)


def _missing(node: fx.Node, *, with_frontend: bool, nan: str | None) -> str | None:
    """Returns the reason why a call without a converter cannot be lowered, or None."""
    reason = missing_converter(node.target)
    if not with_frontend:
        return reason
    refused = [_tensor_refusal(meta, takes_narrow=False) for meta in _tensors(node)]
    other = next(filter(None, refused), None) or frontend_refusal(node, nan=nan)
    return None if other is None else f"{reason}; {other}"


def _writes_input(node: fx.Node) -> bool:
    target = node.args[0] if node.args else None
    is_copy = node.target is torch.ops.aten.copy_.default
    return is_copy and isinstance(target, fx.Node) and target.op == "placeholder"


def _other_write(node: fx.Node, config: CompilerConfig) -> str:
    if find_converter(node.target) is not None and not takes_from_host(config):
        return HOST_IS_BETTER
    return "writes to an argument"


def is_compute(node: fx.Node) -> bool:
    """Whether a call does floating-point work that justifies the overhead of a program."""
    row = find_converter(node.target)
    if row is None or not row.compute or node.target is operator.getitem:
        return False
    return any(is_float(meta.dtype) for meta in _tensors(node))


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    """Returns a call's fake input and output tensors, without unused results."""
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if isinstance(value, torch.Tensor):
            yield value
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        read = {user.args[1] for user in node.users if user.target is operator.getitem}
        for index, part in enumerate(value):
            if isinstance(part, torch.Tensor) and index in read:
                yield part


def _tensor_refusal(meta: torch.Tensor, *, takes_narrow: bool) -> str | None:
    if meta.layout is not torch.strided:
        return f"layout {meta.layout}"
    sizes: tuple[Any, ...] = tuple(meta.shape)
    if any(isinstance(size, int) and size == 0 for size in sizes):
        return "a tensor without elements"
    if any(isinstance(size, torch.SymInt) and _is_unbacked(size) for size in sizes):
        return "a data-dependent size"
    if takes_narrow and meta.dtype in NARROW_DTYPES:
        return None
    return refusal_for_dtype(meta.dtype)


def _is_unbacked(size: Any) -> bool:
    expression = size.node.expr
    return any(str(symbol).startswith("u") for symbol in expression.free_symbols)
