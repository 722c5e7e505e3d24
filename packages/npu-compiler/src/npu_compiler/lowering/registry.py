"""The converter registry, and the binding of a call's arguments to its schema."""

from __future__ import annotations

import builtins
import difflib
import inspect
import keyword
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.errors import RegistryError
from npu_compiler.graph.nodes import op_name
from npu_compiler.graph.op_forms import functional_form, has_functional_form
from npu_compiler.plugins import Plugins
from npu_runtime.public_calls import public_call

__all__ = [
    "Converter",
    "OpKey",
    "bind_arguments",
    "converter",
    "find_converter",
    "foreign_ops",
    "functional_forms",
    "is_foreign",
    "missing_converter",
    "near_matches",
    "registered_ops",
]


def bind_arguments(node: fx.Node) -> dict[str, Any]:
    """Returns a call's arguments by name.

    For an overload, names and defaults are the schema's; a name that Python uses (input, min, from)
    gets a trailing underscore. For a Python function, such as operator.add, positional arguments
    are named arg0, arg1, ...
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        named = {f"arg{index}": value for index, value in enumerate(node.args)}
        return {**named, **node.kwargs}
    bound: dict[str, Any] = {}
    for index, argument in enumerate(node.target._schema.arguments):
        name = _own_name(argument.name)
        if index < len(node.args) and not argument.kwarg_only:
            bound[name] = node.args[index]
        elif argument.name in node.kwargs:
            bound[name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            bound[name] = argument.default_value
    return bound


def _own_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) or hasattr(builtins, name) else name


# Converters of this package are in npu_compiler.lowering.converters. Converters of other wheels are
# found by entry point, and loaded at the first lookup.

# An aten (or custom) overload, a Python function on symbolic integers such as operator.add, or the
# name of an overload whose library may not be imported yet.
OpKey = Any
Rule = Callable[..., str | None]


@dataclass(frozen=True)
class Converter:
    """One registered converter.

    Attributes:
        key: the overload or Python function.
        function: called as `function(ctx, **arguments)` with all arguments by schema name (input_,
            min_ and so on for names that Python uses); returns an Output, or a tuple of them (None
            for one that may not be read).
        rule: called as `rule(node, **arguments)`; returns the reason why this call cannot be
            lowered, or None.
        compute: whether the op's work justifies a program; false for views, casts and creation.
        quantized: whether int8 and uint8 tensors are stored values, without torch's arithmetic,
            from which a program's differs.
        host_is_better: whether the op's kernel on the host's cores is faster than a program; called
            as `host_is_better(node)` if that depends on the call.
        place: file and line of the function, for messages.
    """

    key: OpKey
    function: Callable[..., Any]
    rule: Rule | None
    compute: bool
    quantized: bool
    host_is_better: bool | Callable[[fx.Node], bool]
    place: str


_TABLE: dict[OpKey, Converter] = {}

_PLUGINS = Plugins(
    "npu_compiler.converters", _TABLE, noun="converters", instead="Its ops run eagerly."
)


def converter(
    *keys: OpKey,
    rule: Rule | None = None,
    compute: bool = True,
    quantized: bool = False,
    host_is_better: bool | Callable[[fx.Node], bool] = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function as the converter of one or more ops.

    The function is called as `function(ctx, **arguments)` with all of the call's arguments by
    schema name. Tensors are FX nodes, numbers are plain values; a name that Python uses has a
    trailing underscore (`input_`, `min_`). It returns an OpenVINO output, or a tuple for an op with
    several results. `ctx` is a [Context][npu_compiler.lowering.Context]: `ctx.get(x)` is the
    OpenVINO output of an argument, and `ctx.number(2, dtype)` is a constant. `ctx.dtype(x)`,
    `ctx.rank(x)` and `ctx.sizes(x)` describe an argument, and `ctx.out_dtype()` is the required
    dtype of the result. `ctx.convert(output, dtype)` casts, and `ctx.refuse(reason)` leaves the
    call to the eager device. Nodes are made with `openvino.opset15`.

    For an op that writes to an argument, `Tensor(a!)`, the converter returns the op's results and
    then the new content of each written argument. If the device computes on the host's cores, the
    op's kernel writes in place instead, except for `target="openvino"`.

    A separate wheel names the module with the decorated functions in an entry point of the group
    `npu_compiler.converters`; it is imported when a graph is first lowered.

    Args:
        keys: overloads such as `torch.ops.aten.add.Tensor`, functions such as `operator.add`, or
            names such as "transformers.grouped_mm_fallback.default" of overloads that exist only
            after another library is imported.
        rule: capability rule, called as `rule(node, **arguments)` before lowering; returns the
            reason why this call cannot be lowered, or None.
        compute: whether the op's work justifies a program; false for views, casts and creation.
        quantized: whether the op takes or returns int8 and uint8 tensors as stored values.
        host_is_better: whether the op's kernel is faster than a program if the device computes on
            the host's cores; the op is then converted only for `target="openvino"`. A function of
            the node if that depends on the call.

    Raises:
        RegistryError: [duplicate-converter] if a key already has a converter; [bad-converter] if a
            key is an overload packet or not callable, or if the decorated object is not a function.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        place = _place_of(function)
        for key in keys:
            _check_key(key, place)
        for key in keys:
            forms = (key, functional_form(key)) if has_functional_form(key) else (key,)
            for form in forms:
                row = Converter(form, function, rule, compute, quantized, host_is_better, place)
                _TABLE[form] = row
        return function

    return register


def find_converter(key: OpKey) -> Converter | None:
    """Returns the converter of an op, or None; the first call loads converters of other wheels."""
    _PLUGINS.load()
    return _TABLE.get(key) or _TABLE.get(op_name(key))


def is_foreign(key: OpKey) -> bool:
    """Whether an op's converter is from another package."""
    row = find_converter(key)
    return row is not None and not row.function.__module__.startswith("npu_compiler.")


def foreign_ops() -> frozenset[str]:
    """Returns the names of ops with converters from other packages."""
    _PLUGINS.load()
    return frozenset(op_name(key) for key in [*_TABLE] if is_foreign(key))


def functional_forms() -> dict[OpKey, torch._ops.OpOverload]:
    """Returns ops with a converter that write to an argument -> their functional forms."""
    _PLUGINS.load()
    return {key: functional_form(key) for key in [*_TABLE] if has_functional_form(key)}


def missing_converter(key: OpKey) -> str:
    """Returns why a converter is missing: an unknown name, or a wheel that failed to load."""
    name = op_name(key)
    notes = [] if name.startswith("aten.") else sorted(_PLUGINS.broken.values())
    if close := near_matches(key):
        notes.append(f"similar: {', '.join(close)}")
    return "no converter registered" + (f" ({'; '.join(notes)})" if notes else "")


def registered_ops() -> tuple[str, ...]:
    """Returns the sorted names of all ops with a converter."""
    _PLUGINS.load()
    return tuple(sorted(op_name(key) for key in _TABLE))


@public_call
def near_matches(key: OpKey, *, limit: int = 3) -> tuple[str, ...]:
    """Returns up to `limit` names of registered ops that are similar to this one, best first."""
    if limit < 1:
        return ()
    return tuple(difflib.get_close_matches(op_name(key), registered_ops(), n=limit, cutoff=0.6))


def _check_key(key: OpKey, place: str) -> None:
    is_name = isinstance(key, str) and key.count(".") == 2
    if not is_name and (isinstance(key, torch._ops.OpOverloadPacket) or not callable(key)):
        raise RegistryError(
            f"converter at {place}: `keys` must be overloads or functions, got {key!r}. Name the "
            "overload, as in torch.ops.aten.add.Tensor.",
            code="bad-converter",
        )
    present = _TABLE.get(key)
    if present is not None:
        raise RegistryError(
            f"{op_name(key)}: an op must have only one converter, got a second at {place}, "
            f"the first is at {present.place}. Remove one of them.",
            code="duplicate-converter",
        )


def _place_of(function: Callable[..., Any]) -> str:
    plain = inspect.unwrap(function) if callable(function) else function
    if not inspect.isfunction(plain):
        raise RegistryError(
            f"`register_fx_node_converter` must decorate a function, got {function!r}. "
            "Decorate `def convert(ctx, ...)`.",
            code="bad-converter",
        )
    return f"{plain.__code__.co_filename}:{plain.__code__.co_firstlineno}"
