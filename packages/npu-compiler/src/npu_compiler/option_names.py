"""Checks of names inside options: operators, passes, modules and properties of the device."""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from npu_compiler.errors import OptionError

__all__ = ["check_device_options", "check_modules", "check_ops", "nearest"]


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a sentence that suggests the closest known name, or "" if none is close."""
    close = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}? " if close else ""


def check_ops(option: str, names: Sequence[str]) -> None:
    """Checks that each name is an operator with its overload, as in "aten.gelu.default".

    Raises:
        OptionError: [option-value] with the nearest name.
    """
    for name in names:
        if not _is_op(name):
            known = _op_names()
            default = f"{name}.default"
            hint = nearest(default if default in known else name, known)
            raise OptionError(
                f"`{option}` must name operators with their overload, such as "
                f'"aten.gelu.default", got {name!r}. {hint}Import the module that defines a '
                "custom operator first.",
                code="option-value",
            )


def _is_op(name: str) -> bool:
    if name in _op_names():
        return True
    # Python functions and higher-order operators are named by their module.
    module, _, last = name.rpartition(".")
    homes = (sys.modules.get(home) for home in (module, f"_{module}"))
    if any(hasattr(home, last) for home in homes if home is not None):
        return True
    return module == "torch.ops.higher_order" and last in torch._ops._higher_order_ops


def _op_names() -> set[str]:
    """Returns the names of the registered operators, each with its overload."""
    names = set()
    for schema in torch._C._dispatch_get_all_op_names():
        name, _, overload = schema.partition(".")
        names.add(f"{name.replace('::', '.', 1)}.{overload or 'default'}")
    return names


def check_modules(
    option: str, patterns: Sequence[str], matched: Iterable[str], known: Iterable[str]
) -> None:
    """Raises [option-value], with the nearest name, unless each pattern has matched a module.

    Modules are those with calls in the graph.
    """
    for pattern in patterns:
        if pattern not in set(matched):
            names = sorted(set(known))
            hint = nearest(pattern, names) or f"The graph has {', '.join(names[:8]) or 'none'}. "
            raise OptionError(
                f"`{option}` must name modules that compute something themselves, got "
                f"{pattern!r}. {hint}Patterns such as 'layers.*.norm' match several.",
                code="option-value",
            )


def check_device_options(options: Mapping[str, str]) -> None:
    """Checks that the device's compiler accepts the properties, by compiling a one-op program.

    Raises:
        OptionError: [option-value] with the nearest name.
    """
    if options:
        _check_properties(tuple(sorted(options.items())))


@functools.cache
def _check_properties(options: tuple[tuple[str, str], ...]) -> None:
    # Imported late because most compilations have no such options.
    import openvino as ov
    import openvino.opset15 as ops

    import npu_runtime
    from npu_compiler.openvino_core import openvino_core
    from npu_compiler.programs.load import load_model
    from npu_compiler.programs.precision import compile_options

    value = ops.parameter(ov.Shape([1]), ov.Type.f32)
    model = ov.Model([ops.abs(value)], [value], "options")
    given = {**compile_options(torch.float32), **dict(options)}
    try:
        load_model(model, name="options", options=given)
    except npu_runtime.ProgramError as failure:
        device = npu_runtime.device_info().device
        try:
            known: Any = openvino_core().get_property(device, "SUPPORTED_PROPERTIES")
        except RuntimeError:
            known = ()
        unknown = [name for name, _ in options if known and name not in known]
        hint = nearest(unknown[0], known) if unknown else ""
        raise OptionError(
            f"`device_options` must be properties that the compiler of device {device} "
            f"takes, got {dict(options)}. {hint}The compiler reports: {_last_line(str(failure))}.",
            code="option-value",
        ) from failure


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "nothing"
