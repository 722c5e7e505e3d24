"""Custom ops, defined in Python or converted to existing ops."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from openvino.utils.node_factory import NodeFactory
from torch import fx
from torch._library.custom_ops import CustomOpDef
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.errors import RegistryError
from npu_compiler.graph.nodes import op_name
from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import (
    Rule,
    bind_arguments,
    converter,
    find_converter,
    missing_converter,
)
from npu_runtime.public_calls import public_call

__all__ = ["custom_op", "define_op"]

# For an op with schema and kernel in C++, use torch.library and register_fx_node_converter instead.

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")


@public_call
def define_op(
    name: str,
    *,
    mutates_args: Sequence[str],
    fake: Callable[..., Any] | None = None,
    convert: Callable[..., Any] | None = None,
    rule: Rule | None = None,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    host_is_better: bool = False,
) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Registers the decorated function of torch operators as a custom op.

    The function is the op's kernel on every device. Its annotations give the schema, as in
    `torch.library.custom_op`. The other arguments are registered with the op.

    Args:
        name: "namespace::op", available as torch.ops.namespace.op.
        mutates_args: names of the tensors that the function writes to, such as a cache; `()` for
            none. torch.compile keeps the order of these writes and other accesses.
        fake: called like the function, with tensors without memory; returns results with the right
            sizes, dtypes and devices. Not needed for an op that returns nothing.
        convert: called as `convert(ctx, **arguments)`; builds the OpenVINO nodes for a call in a
            program, see [register_fx_node_converter][npu_compiler.register_fx_node_converter].
            Without it, the op runs between programs. For an op that writes, it returns the results
            and then the new content of each written tensor.
        rule: called as `rule(node, **arguments)`; returns the reason why a call cannot be
            converted, or None.
        backward: called as `backward(ctx, *gradients)`; returns a gradient for each argument.
        setup_context: called as `setup_context(ctx, inputs, output)`; saves values for backward.
        host_is_better: whether the function is faster than a program if the device computes on the
            host's cores. Always true for an op that writes.

    Returns:
        A decorator; its result is called like the function.

    Raises:
        RegistryError: [bad-op] for an invalid name, an unknown written argument, a gradient of an
            op that writes, `setup_context` or `rule` without the argument that uses it, and a
            function without a schema for torch; [duplicate-op] for an op that exists already.
    """

    def define(function: Callable[..., Any]) -> CustomOpDef:
        _check(name, function, mutates_args)
        op = _defined(name, function, mutates_args)
        if fake is not None:
            op.register_fake(fake)
        if backward is not None:
            op.register_autograd(backward, setup_context=setup_context)
        if convert is not None:
            key = op._opoverload
            converter(key, rule=rule, host_is_better=host_is_better)(convert)
        return op

    if backward is not None and mutates_args:
        raise _bad(
            name,
            "an op that writes to its arguments must not have a gradient, got backward and "
            "mutates_args="
            f"{tuple(mutates_args)}",
            "Return the new tensors instead, or leave out backward",
        )
    for part, needed, what in (
        (setup_context, backward, "`setup_context` must be given with `backward`"),
        (rule, convert, "`rule` must be given with `convert`"),
    ):
        if part is not None and needed is None:
            raise _bad(name, f"{what}, got it alone", "Pass both, or neither")
    return define


def _check(name: str, function: Callable[..., Any], mutates_args: Sequence[str]) -> None:
    if not _NAME.fullmatch(name):
        raise _bad(repr(name), 'the name must be "namespace::op"', "Use letters, digits and _")
    if not inspect.isfunction(function):
        raise _bad(
            name, f"the decorated object must be a function, got {function!r}", "Decorate `def ...`"
        )
    known = tuple(inspect.signature(function).parameters)
    for argument in mutates_args:
        if argument not in known:
            raise _bad(
                name,
                f"`mutates_args` must name arguments of the function ({', '.join(known)}), got "
                f"{argument!r}",
                "Name one of them",
            )
    if name in (found.partition(".")[0] for found in torch._C._dispatch_get_all_op_names()):
        raise RegistryError(
            f"define_op {name}: an op must be defined only once, got a second definition at "
            f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}. "
            "Choose another name, or start Python again.",
            code="duplicate-op",
        )


def _defined(name: str, function: Callable[..., Any], mutates_args: Sequence[str]) -> CustomOpDef:
    try:
        return torch.library.custom_op(name, function, mutates_args=tuple(mutates_args))
    except (ValueError, TypeError) as failure:
        first = str(failure).strip().splitlines()[0].rstrip(".")
        raise _bad(
            name, f"the function must have a schema for torch, got: {first}", "Annotate it"
        ) from failure


def _bad(name: str, what: str, next_step: str) -> RegistryError:
    return RegistryError(f"define_op {name}: {what}. {next_step}.", code="bad-op")


_OPSET = "opset15"


@public_call
def custom_op(
    ctx: Context,
    operation: str | Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """Builds a converter's result from an OpenVINO operation or a torch function.

    Args:
        ctx: the converter's context.
        operation: type of an OpenVINO operation, such as "SoftPlus" (attributes as in the
            operation's specification); or a torch function that computes the op. Its aten calls are
            lowered into the same program.
        inputs: in order: the converter's arguments (FX nodes and numbers), and, for an operation,
            outputs of other nodes. They may be passed by keyword.
        attributes: of the operation; keyword arguments of the function.

    Returns:
        An output, or a tuple of several outputs.

    Raises:
        Refused: for an unknown operation or attribute, or a call without a converter. The custom op
            then runs eagerly, with the reason in explain(), and is an error under strict.
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
    """Returns a hint that lists operations with names similar to a type."""
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
    """Returns the function's aten calls on the fake values of tensors."""
    # Late: npu_compiler.graph.op_forms imports the ops, which lowering does not need.
    from npu_compiler.graph.op_forms import decompositions

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
