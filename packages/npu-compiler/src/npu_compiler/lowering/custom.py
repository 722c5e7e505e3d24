"""custom_op: a call of somebody's own op out of what is there, for use in a converter."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from openvino.utils.node_factory import NodeFactory
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.graph.calls import op_name
from npu_compiler.lowering.arguments import bind_arguments
from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import find_converter, missing_converter
from npu_runtime.public_calls import public_call

__all__ = ["custom_op"]

_OPSET = "opset15"


@public_call
def custom_op(
    ctx: Context,
    operation: str | Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """Builds what a converter returns, of an OpenVINO operation or of a function of torch.

    Args:
        ctx: as the converter was given it.
        operation: type of an OpenVINO operation, such as "SoftPlus" (its attributes are those of
            the operation's specification); or a function that computes the op in torch, of which
            each call is lowered by its own converter, into the same program.
        inputs: in order, also under names: the converter's arguments (FX nodes and numbers), and,
            for an operation, outputs of other nodes.
        attributes: of the operation; keyword arguments of the function.

    Returns:
        An output, or a tuple of them where there are several.

    Raises:
        Refused: for an operation, an attribute or a call that there is not; the call then runs
            eagerly, with the reason in explain(), and is an error under strict.
    """
    listed = list(inputs.values() if isinstance(inputs, Mapping) else inputs)
    named = dict(attributes or {})
    if isinstance(operation, str):
        return _operation(ctx, operation, listed, named)
    return _inlined(ctx, operation, listed, named)


def _operation(ctx: Context, kind: str, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    outputs = [value if isinstance(value, ov.Output) else ctx.get(value) for value in inputs]
    try:
        node = NodeFactory(_OPSET).create(kind, outputs, attributes)
    except RuntimeError as failure:
        if "Couldn't create operation" not in str(failure):
            raise
        ctx.refuse(f"custom_op: OpenVINO's {_OPSET} has no operation {kind!r}{_similar(kind)}")
    known = node.get_attributes()
    for name in attributes:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            ctx.refuse(f"custom_op: {kind} has no attribute {name!r}; it has {names}")
    results = tuple(node.output(index) for index in range(node.get_output_size()))
    return results[0] if len(results) == 1 else results


def _similar(kind: str) -> str:
    """Operations whose Python names are spelt like a type."""
    close = difflib.get_close_matches(kind.lower(), dir(ops), n=2, cutoff=0.7)
    return f" (similar: {', '.join(close)})" if close else ""


def _inlined(
    ctx: Context, function: Callable[..., Any], inputs: list[Any], named: dict[str, Any]
) -> Any:
    given = [*inputs, *named.values()]
    nodes = [value for value in given if isinstance(value, fx.Node)]
    tensors = [node for node in nodes if isinstance(node.meta["val"], torch.Tensor)]
    if len(tensors) < len(nodes):
        ctx.refuse("custom_op: a function takes tensors and plain numbers, not symbolic ones")
    graph = _trace(function, inputs, named, tensors)
    ctx.live.update(graph.nodes)
    caller = ctx.node
    results: Any = None
    try:
        placeholders = iter(tensors)
        for node in graph.nodes:
            if node.op == "placeholder":
                ctx.bind(node, ctx.get(next(placeholders)))
            elif node.op == "get_attr":
                ctx.bind(node, ctx.constant(getattr(graph.owning_module, str(node.target))))
            elif node.op == "output":
                results = node.args[0]
            else:
                ctx.node = node
                ctx.bind(node, _call(ctx, node))
    finally:
        ctx.node = caller
    if isinstance(results, (tuple, list)):
        return tuple(None if part is None else ctx.get(part) for part in results)
    return ctx.get(results)


def _trace(
    function: Callable[..., Any],
    inputs: list[Any],
    named: dict[str, Any],
    tensors: list[fx.Node],
) -> fx.Graph:
    """The function's aten calls on the fake values of tensors."""
    # Late: npu_compiler.graph.whole_ops imports the ops, which are not needed to lower a graph.
    from npu_compiler.graph.whole_ops import decompositions

    def call(*values: torch.Tensor) -> Any:
        by_node = dict(zip(map(id, tensors), values, strict=True))
        own = [by_node.get(id(value), value) for value in inputs]
        return function(*own, **{name: by_node.get(id(v), v) for name, v in named.items()})

    fakes = [node.meta["val"] for node in tensors]
    traced = make_fx(call, decomposition_table=decompositions())
    if not fakes:
        return traced().graph
    with fakes[0].fake_mode, torch.no_grad():
        graph_module = traced(*fakes)
    graph_module.graph.eliminate_dead_code()
    return graph_module.graph


def _call(ctx: Context, node: fx.Node) -> Any:
    row = find_converter(node.target)
    if row is None:
        ctx.refuse(f"custom_op: in it, {op_name(node.target)}: {missing_converter(node.target)}")
    arguments = bind_arguments(node)
    reason = row.rule(node, **arguments) if row.rule else None
    if reason is not None:
        ctx.refuse(f"custom_op: in it, {op_name(node.target)}: {reason}")
    value = row.function(ctx, **arguments)
    if isinstance(value, (tuple, list)):
        return tuple(None if part is None else _output(part) for part in value)
    return _output(value)


def _output(value: Any) -> ov.Output:
    return value if isinstance(value, ov.Output) else value.output(0)
