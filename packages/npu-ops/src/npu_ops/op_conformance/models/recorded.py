"""The recorded calls as cases.

`recorded.json` beside this file holds each call once, with the networks that make it.
``python -m npu_ops.op_conformance.record`` writes it.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from npu_ops.op_conformance.cases.case import Case

__all__ = ["RECORDED", "model_cases", "model_names"]

RECORDED = Path(__file__).with_name("recorded.json")


@functools.cache
def model_cases() -> dict[str, Case]:
    """All recorded calls by id, in the order of the file."""
    cases = {}
    for op, calls in _read()["calls"].items():
        for dtype, arguments, numbers in calls:
            models = tuple(model_names()[number] for number in numbers)
            case = Case("models", op, dtype, "recorded", arguments, models=models)
            cases[case.id] = case
    return cases


@functools.cache
def model_names() -> tuple[str, ...]:
    """The networks, in the order in which the file counts them."""
    return tuple(_read()["networks"])


@functools.cache
def _read() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return table
