"""define_op: an op of one's own in Python alone, with all that eager and torch.compile ask for.

An op whose schema and kernel are in C++ has no need of it: torch.library and
register_fx_node_converter say the rest of that one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from npu_compiler.errors import RegistryError
from npu_compiler.lowering.registry import Rule, converter
from npu_runtime.public_calls import public_call

__all__ = ["define_op"]

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
    """Decorates a function of torch's operators, which becomes an op of its own.

    The function is the op's kernel on every device. Its annotations are the op's schema, as
    `torch.library.custom_op` reads them; all that is given here is registered with it.

    Args:
        name: "namespace::op"; torch.ops.namespace.op is then the op.
        mutates_args: names of the tensors that the function writes to, such as a cache; `()` for
            none. torch.compile keeps their order with other reads and writes.
        fake: called as the function with tensors that have no memory; returns what the op returns,
            with the right sizes, dtypes and devices. An op that returns nothing needs none.
        convert: called as `convert(ctx, **arguments)`; builds the OpenVINO nodes for a call in a
            program, see [register_fx_node_converter][npu_compiler.register_fx_node_converter].
            Without it the op runs between programs. For an op that writes, it returns the results
            and then the new content of each written tensor.
        rule: called as `rule(node, **arguments)`; returns why a call cannot be converted, or None.
        backward: called as `backward(ctx, *gradients)`; returns a gradient for each argument.
        setup_context: called as `setup_context(ctx, inputs, output)`; keeps what backward needs.
        host_is_better: whether the function is better than a program where the device's arithmetic
            is that of the host's cores. For an op that writes it is so always.

    Returns:
        A decorator; what it returns is called as the function was.

    Raises:
        RegistryError: [bad-op] for a name that is none, for a written argument that the function
            does not have, for a gradient of an op that writes, for parts without the part that uses
            them, and for a function that torch finds no schema for; [duplicate-op] for an op that
            there is already.
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
            f"an op that writes to its arguments has no gradient; got backward and mutates_args="
            f"{tuple(mutates_args)}",
            "Return the new tensors instead, or leave out backward",
        )
    for part, needed, what in (
        (setup_context, backward, "setup_context goes with backward"),
        (rule, convert, "rule goes with convert"),
    ):
        if part is not None and needed is None:
            raise _bad(name, f"{what}; got it alone", "Pass both, or neither")
    return define


def _check(name: str, function: Callable[..., Any], mutates_args: Sequence[str]) -> None:
    if not _NAME.fullmatch(name):
        raise _bad(repr(name), 'the name must be "namespace::op"', "Use letters, digits and _")
    if not inspect.isfunction(function):
        raise _bad(name, f"a function is decorated; got {function!r}", "Decorate `def ...`")
    known = tuple(inspect.signature(function).parameters)
    for argument in mutates_args:
        if argument not in known:
            raise _bad(
                name,
                f"mutates_args are arguments of the function, {', '.join(known)}; got {argument!r}",
                "Name one of them",
            )
    if name in (found.partition(".")[0] for found in torch._C._dispatch_get_all_op_names()):
        raise RegistryError(
            f"define_op {name}: an op is defined once; got a second at "
            f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}. "
            "Choose another name, or start Python again.",
            code="duplicate-op",
        )


def _defined(name: str, function: Callable[..., Any], mutates_args: Sequence[str]) -> CustomOpDef:
    try:
        return torch.library.custom_op(name, function, mutates_args=tuple(mutates_args))
    except (ValueError, TypeError) as failure:
        first = str(failure).strip().splitlines()[0].rstrip(".")
        raise _bad(name, f"torch must find a schema; got: {first}", "Annotate it") from failure


def _bad(name: str, what: str, next_step: str) -> RegistryError:
    return RegistryError(f"define_op {name}: {what}. {next_step}.", code="bad-op")
