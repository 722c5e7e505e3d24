"""A call as a program depends on it: op, dtypes, shapes, axis orders and numbers.

The same facts are encoded for look-up in csrc/variants/signature.cpp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from npu_ops.errors import OperatorInputError
from npu_ops.names import dotted_name

__all__ = ["OpCall", "OpProgram", "TensorSpec", "parse_call"]

_DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
    "c64": torch.complex64,
}
_SHORT = {dtype: name for name, dtype in _DTYPES.items()}
_SPEC = re.compile(r"(?P<sizes>(?:\d+x)*)(?P<dtype>[a-z]+\d*)(?:@(?P<order>\d+(?:\.\d+)*))?")


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its values.

    Attributes:
        dtype: dtype of the elements.
        shape: shape of the tensor.
        order: axes from the slowest to the fastest in memory; empty for the default order.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        strides = [0] * len(self.shape)
        step = 1
        for axis in reversed(self.order or range(len(self.shape))):
            strides[axis] = step
            step *= self.shape[axis]
        return tuple(strides)

    @property
    def size_bytes(self) -> int:
        """Size of the elements in bytes."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize

    def __str__(self) -> str:
        name = _SHORT.get(self.dtype) or str(self.dtype).removeprefix("torch.")
        order = f"@{'.'.join(map(str, self.order))}" if self.order else ""
        return "x".join([*map(str, self.shape), name]) + order


@dataclass(frozen=True)
class OpCall:
    """One call.

    Attributes:
        op: name with namespace and overload, in torch's spelling: `aten::mm`, `aten::add.Tensor`.
        arguments: one per argument of the schema; TensorSpec for tensors, plain values, and None.
        needs_grad: whether a gradient will be taken, for ops that compute a result only for it.
    """

    op: str
    arguments: tuple[Any, ...]
    needs_grad: bool = False

    def overload(self) -> Any:
        """Returns torch's overload object of the op."""
        return find_overload(self.op)

    def split(self, arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Sorts arguments, one per argument of the schema, into positional and named ones."""
        positional, named = [], {}
        for argument, value in zip(self.overload()._schema.arguments, arguments, strict=True):
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                positional.append(value)
        return positional, named

    def invoke(self, arguments: Sequence[Any]) -> Any:
        """Calls the op with these arguments, one per argument of the schema."""
        positional, named = self.split(arguments)
        return self.overload()(*positional, **named)

    def results(self) -> Any:
        """Returns the call's results as meta tensors.

        Raises:
            OperatorInputError: [op-arguments] if torch refuses the arguments.
        """
        arguments = [
            torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device="meta")
            if isinstance(value, TensorSpec)
            else value
            for value in self.arguments
        ]
        try:
            return self.invoke(arguments)
        except (RuntimeError, IndexError, TypeError, ValueError) as refusal:
            text = str(refusal).strip().splitlines()[0]
            raise OperatorInputError(
                f"{self}: `arguments` must be valid, got an error of torch: {text} Correct them.",
                code="op-arguments",
            ) from refusal

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensor arguments, in order."""
        return tuple(value for value in self.arguments if isinstance(value, TensorSpec))

    def __str__(self) -> str:
        """Returns one line, equal for equal calls; the key of records."""
        schema = self.overload()._schema
        parts = [dotted_name(self.op)]
        for argument, value in zip(schema.arguments, self.arguments, strict=True):
            if isinstance(value, TensorSpec):
                parts.append(str(value))
            elif value is not None:
                parts.append(f"{argument.name}={json.dumps(value).replace(' ', '')}")
        return " ".join([*parts, "needs_grad"] if self.needs_grad else parts)


@dataclass(frozen=True)
class OpProgram:
    """A program for a call, and the mapping of its ports to the op's arguments and results.

    Attributes:
        program: program of npu_runtime's native side.
        inputs: argument index of each program input.
        results: for each result of the op, the index of a program output, UNDEFINED, or EMPTY for a
            tensor without elements.
        output_orders: for each output, the permutation that gives the op's result; empty for none.
    """

    UNDEFINED: ClassVar[int] = -1
    EMPTY: ClassVar[int] = -2

    program: Any
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    output_orders: tuple[tuple[int, ...], ...]


def find_overload(name: str) -> Any:
    """Returns torch's overload object of an op.

    Raises:
        OperatorInputError: [unknown-op] if the op does not exist.
    """
    namespace, _, rest = dotted_name(name).partition(".")
    if not rest:
        namespace, rest = "aten", namespace
    base, _, overload = rest.partition(".")
    try:
        packet = getattr(getattr(torch.ops, namespace), base, None)
    except (TypeError, RuntimeError):  # not a valid name
        packet = None
    found = getattr(packet, overload or "default", None) if packet is not None else None
    if found is None:
        known = ", ".join(packet.overloads()) if packet is not None else ""
        hint = f"Its overloads are {known}." if known else "Write it as torch does: aten.mm."
        raise OperatorInputError(
            f"`op` must be an operator of torch, got {ascii(name)[:200]}. {hint}", code="unknown-op"
        )
    return found


def parse_call(op: str, texts: Sequence[str]) -> OpCall:
    """Parses a call from the command line: `aten.mm`, `512x512xf32`, `stride=[1,1]`.

    Args:
        op: the op's name.
        texts: tensors by size and dtype, in the order of the schema, and other arguments by name,
            with values as JSON. A single tensor is used for all tensor arguments.

    Raises:
        OperatorInputError: [unknown-op], or [op-arguments] if a text cannot be parsed or an
            argument is missing.
    """
    overload = find_overload(op)
    schema = overload._schema
    named = dict(text.split("=", 1) for text in texts if "=" in text)
    specs = [_parse_spec(text) for text in texts if "=" not in text]
    known = [argument.name for argument in schema.arguments]
    if unknown := sorted(set(named) - set(known)):
        raise OperatorInputError(
            f"{op}: arguments must be among {', '.join(known)}, got {unknown[0]!r}. Use one of "
            "these names.",
            code="op-arguments",
        )
    required = [a for a in schema.arguments if str(a.type) == "Tensor"]
    if len(specs) == 1:
        specs = specs * len(required)
    values: list[Any] = []
    for argument in schema.arguments:
        kind = str(argument.type)
        if argument.name in named:
            values.append(_parse_value(op, argument.name, named[argument.name]))
        elif kind == "Tensor" or (
            kind == "Optional[Tensor]" and len(specs) > _missing(values, required)
        ):
            if not specs:
                raise _missing_argument(op, argument.name, "a tensor such as 512x512xf32")
            values.append(specs.pop(0))
        elif argument.has_default_value():
            values.append(argument.default_value)
        elif kind.startswith("Optional"):
            values.append(None)
        else:
            raise _missing_argument(op, argument.name, f"{argument.name}=VALUE ({kind})")
    if specs:
        raise OperatorInputError(
            f"{op}: there must be {len(required)} tensors, got {len(specs)} more. Omit them.",
            code="op-arguments",
        )
    return OpCall(f"{overload._schema.name}{_suffix(overload)}", tuple(values))


def _missing(values: Sequence[Any], required: Sequence[Any]) -> int:
    """Returns the number of missing required tensors."""
    return len(required) - sum(isinstance(value, TensorSpec) for value in values)


def _suffix(overload: Any) -> str:
    return f".{overload._overloadname}" if overload._overloadname != "default" else ""


def _parse_spec(text: str) -> TensorSpec:
    match = _SPEC.fullmatch(text)
    if match is None or match["dtype"] not in _DTYPES:
        raise OperatorInputError(
            f"A tensor must be sizes and a dtype of {', '.join(_DTYPES)}, joined by x, got "
            f"{text!r}. Write, for example, 512x512xf32.",
            code="op-arguments",
        )
    shape = tuple(int(size) for size in match["sizes"].split("x") if size)
    order = tuple(int(axis) for axis in (match["order"] or "").split(".") if axis)
    if order and sorted(order) != list(range(len(shape))):
        raise OperatorInputError(
            f"A tensor's order after @ must name each axis once, got {text!r}. Write, for "
            "example, 512x256xf32@1.0 for a transposed matrix.",
            code="op-arguments",
        )
    return TensorSpec(_DTYPES[match["dtype"]], shape, order)


def _parse_value(op: str, name: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
        if _SPEC.fullmatch(text):
            return _parse_spec(text)
        if text != "null":
            raise OperatorInputError(
                f"{op}: `{name}` must be JSON, got {text!r}. Write, for example, {name}=[1,1].",
                code="op-arguments",
            ) from None
    return value


def _missing_argument(op: str, name: str, form: str) -> OperatorInputError:
    return OperatorInputError(
        f"{op}: `{name}` must be given, got none. Add {form}.", code="op-arguments"
    )
