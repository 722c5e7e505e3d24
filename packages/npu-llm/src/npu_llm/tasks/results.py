"""Result classes: recorded with a program, and rebuilt from its tensors."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from transformers.utils import ModelOutput

__all__ = ["describe_result", "make_result"]

# Classes named by a folder must come from this module: a folder contains data, not code.
_HOME = "transformers."


def describe_result(result: Any) -> dict[str, Any]:
    """Returns a result's class and its nested results as JSON."""
    kind = type(result)
    own = kind.__module__.startswith(_HOME)
    nested = {
        name: describe_result(value)
        for name, value in result.items()
        if isinstance(value, ModelOutput)
    }
    return {"class": f"{kind.__module__}:{kind.__qualname__}" if own else None, "nested": nested}


def make_result(described: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Returns a result of the recorded class with a program's values.

    Args:
        described: the value that describe_result returned.
        values: field -> tensor, tuple of tensors, or fields of a nested result.
    """
    nested = described["nested"]
    fields = {
        name: make_result(nested[name], value) if name in nested else _as_tuple(value)
        for name, value in values.items()
    }
    place = described["class"]
    if place is None or not str(place).startswith(_HOME):
        return ModelOutput(fields)
    module, _, name = str(place).partition(":")
    return getattr(importlib.import_module(module), name)(**fields)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
