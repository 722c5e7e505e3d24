"""The options of one compilation, checked.

Settings of the process are npu_compiler.config's.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from npu_compiler.errors import OptionError
from npu_compiler.programs.precision import PRECISIONS, precision_name

__all__ = ["CompilerConfig", "parse_options"]


@dataclass(frozen=True)
class CompilerConfig:
    """How to compile.

    Attributes:
        dtype: in which precision programs compute: "float32", "bfloat16" or "float16"; None follows
            the graph's own dtype. Inputs and outputs keep their dtypes.
        strict: a node that would run eagerly is an error instead.
        freeze: weights become constants of inference programs. Without it they stay inputs.
        fallback_ops: ops, as in "aten.gelu.default", that are to run eagerly.
    """

    dtype: str | None = None
    strict: bool = False
    freeze: bool = True
    fallback_ops: tuple[str, ...] = ()


def parse_options(options: Mapping[str, Any] | None) -> CompilerConfig:
    """Makes a configuration of the mapping given to torch.compile(options=...).

    Raises:
        OptionError: [unknown-option] with names that are spelt alike, [option-value] for a value of
            the wrong type, [unknown-dtype].
    """
    known = [field.name for field in fields(CompilerConfig)]
    given = dict(options or {})
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."
            raise OptionError(
                f'torch.compile(backend="npu"): options are {", ".join(known)}; got {name!r}. '
                f"{hint}",
                code="unknown-option",
            )
    for name in ("strict", "freeze"):
        if name in given and not isinstance(given[name], bool):
            raise _bad_value(name, "True or False", given[name])
    if given.get("dtype") is not None:
        given["dtype"] = _float_precision(given["dtype"])
    if "fallback_ops" in given:
        given["fallback_ops"] = _op_names(given["fallback_ops"])
    return CompilerConfig(**given)


def _float_precision(dtype: Any) -> str:
    if not isinstance(dtype, (str, torch.dtype)):
        raise _bad_value("dtype", "a torch dtype or its name", dtype)
    name = precision_name(dtype)
    if name.startswith("int"):
        floats = ", ".join(name for name in PRECISIONS if not name.startswith("int"))
        raise OptionError(
            f"dtype: torch.compile computes in one of {floats}; got {dtype!r}. Compress weights "
            "with npu_compiler.quantize.",
            code="unknown-dtype",
        )
    return name


def _op_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise _bad_value("fallback_ops", 'a list of names such as "aten.gelu.default"', value)
    return tuple(value)


def _bad_value(name: str, rule: str, received: Any) -> OptionError:
    return OptionError(
        f"option {name}: {rule}; got {received!r} ({type(received).__name__}). Pass such a value.",
        code="option-value",
    )
