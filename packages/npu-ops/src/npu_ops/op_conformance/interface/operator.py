"""Ops of the interface: signature, torch function, and comparison rule.

operators.toml in this directory lists them; `calls` has formulas that torch lacks, and cases/ the
arguments.
"""

from __future__ import annotations

import functools
import importlib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from npu_ops.errors import OperatorInputError
from npu_ops.names import first_match
from npu_runtime.public_calls import public_call

__all__ = ["Operator", "aten_operator", "left_out", "load_operators", "operator_named"]

_FILE = Path(__file__).with_name("operators.toml")
_CALLS = "npu_ops.op_conformance.interface.calls"


@dataclass(frozen=True)
class Operator:
    """An op as the suites call it.

    Attributes:
        name: name in the interface, such as `softmax`, or in aten, such as `aten.addmm.default`.
        signature: signature in torch's schema language; arguments after `*` are keyword-only.
        call: dotted name of the function; the prefix `calls.` means the module calls.
        inplace: dotted name of the in-place variant; empty for none.
        compare: name of the comparison rule in cases/judge.py.
        tolerance: name in cases/tolerances.toml.
        reference: dotted name of the CPU's function, if `call` has no CPU kernel.
    """

    name: str
    signature: str
    call: str
    inplace: str = ""
    compare: str = "close"
    tolerance: str = "usual"
    reference: str = ""

    @functools.cached_property
    def schema(self) -> Any:
        """The signature, parsed: `arguments` have `name`, `type`, `kwarg_only`, defaults."""
        return torch._C.parse_schema(f"{self.name.replace('.', '_')}{self.signature}")

    @functools.cached_property
    def tensors(self) -> frozenset[str]:
        """Names of the arguments that are tensors or lists of them."""
        return frozenset(one.name for one in self.schema.arguments if "Tensor" in str(one.type))

    @public_call
    def function(self, check: str = "forward") -> Callable[..., Any]:
        """Returns the callable of a check on the device."""
        return _resolve(self.inplace if check == "in-place" else self.call)

    @public_call
    def host_function(self, check: str = "forward") -> Callable[..., Any]:
        """Returns the callable of a check on the CPU."""
        return _resolve(self.reference) if self.reference else self.function(check)

    @public_call
    def bind(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Binds values to the arguments of the signature.

        Args:
            values: values by argument name; missing ones get their defaults.

        Returns:
            Positional arguments and keywords.

        Raises:
            OperatorInputError: [case-argument] for an unknown or a missing required argument.
        """
        known = {one.name: one for one in self.schema.arguments}
        astray = sorted(values.keys() - known.keys())
        missing = sorted(
            name
            for name, one in known.items()
            if name not in values
            and not one.has_default_value()
            and not str(one.type).startswith("Optional")
        )
        if astray or missing:
            raise OperatorInputError(
                f"{self.name}: arguments must match the signature {self.signature}, got extra: "
                f"{astray or 'none'}, missing: {missing or 'none'}. Correct the case, or the "
                "signature in operators.toml.",
                code="case-argument",
            )
        given = [one for one in self.schema.arguments if not one.kwarg_only]
        last = max((i for i, one in enumerate(given, 1) if one.name in values), default=0)
        positional = [values.get(one.name, one.default_value) for one in given[:last]]
        keywords = {name: value for name, value in values.items() if known[name].kwarg_only}
        return positional, keywords


@functools.cache
def load_operators() -> dict[str, Operator]:
    """Returns the ops of the interface by name, sorted."""
    table = _read()["ops"]
    return {name: Operator(name, **table[name]) for name in sorted(table)}


@functools.cache
def left_out() -> dict[str, str]:
    """Returns names of other interfaces that this one lacks, with reasons."""
    return dict(sorted(_read()["left_out"].items()))


@functools.cache
@public_call
def aten_operator(name: str) -> Operator:
    """Returns an op of aten or npu as a recorded network calls it.

    Args:
        name: name with overload, such as `aten.addmm.default`.

    Raises:
        OperatorInputError: [unknown-op] if torch has no overload of that name.
    """
    try:
        op: Any = _resolve(f"torch.ops.{name}")
        schema = op._schema
    except (AttributeError, RuntimeError, TypeError, UnicodeError):
        raise _unknown(name) from None
    rules = {"tolerance": "sums", "compare": "close"}
    for pattern, rule in _read()["aten"].items():
        if first_match(name, [pattern]):
            rules |= rule
    text = str(schema)
    return Operator(name, text[text.index("(") :], f"torch.ops.{name}", **rules)


@public_call
def operator_named(name: str) -> Operator:
    """Returns the op of a case: from aten if the name is qualified, else from the interface.

    Raises:
        OperatorInputError: [unknown-op] if there is no op of that name.
    """
    if name.startswith("aten."):
        return aten_operator(name)
    if name not in load_operators():
        raise _unknown(name)
    return load_operators()[name]


def _unknown(name: str) -> OperatorInputError:
    return OperatorInputError(
        f"`{ascii(name)[:80]}` must be an op of the interface, or of torch with its overload, got "
        "neither. Write it as aten.addmm.default.",
        code="unknown-op",
    )


@functools.cache
def _read() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


@functools.cache
def _resolve(path: str) -> Callable[..., Any]:
    first, *rest = path.split(".")
    start: Any = importlib.import_module(_CALLS) if first == "calls" else torch
    if first == "npu_ops":
        module, _, rest_of = path.rpartition(".")
        start, rest = importlib.import_module(module), [rest_of]
    found: Callable[..., Any] = functools.reduce(getattr, rest, start)
    return found
