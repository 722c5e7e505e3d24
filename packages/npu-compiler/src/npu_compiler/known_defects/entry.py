"""Entries of known defects, and node replacement in a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import openvino as ov

__all__ = ["KnownDefect", "Reproducer", "measure", "put_in_place", "version_number"]


def put_in_place(node: ov.Node, other: ov.Node) -> None:
    """Replaces a node's only result by another for all users, and keeps the node's names."""
    other.set_friendly_name(node.get_friendly_name())
    names = node.get_output_tensor(0).get_names()
    node.output(0).replace(other.output(0))
    other.get_output_tensor(0).set_names(names)


@dataclass(frozen=True)
class Reproducer:
    """A model that shows a defect.

    Attributes:
        model: with static inputs.
        inputs: inputs of the run.
        expected: its first result, computed by other means.
        hint: INFERENCE_PRECISION_HINT of the compilation.
        before: inputs of earlier runs of the same request.
    """

    model: ov.Model
    inputs: Sequence[np.ndarray]
    expected: np.ndarray
    hint: str = "f32"
    before: Sequence[Sequence[np.ndarray]] = ()


@dataclass(frozen=True)
class KnownDefect:
    """A defect of a plugin.

    Attributes:
        name: short, with hyphens.
        summary: the defect, in one sentence.
        condition: the conditions, in words.
        devices: OpenVINO's names of the affected devices, such as CPU.
        first, last: releases in which it was seen, such as (2026, 4, 1). Later releases are assumed
            to have it until the entry's test shows otherwise.
        report: an upstream issue, or the text of a report.
        reproducer: builds the smallest model with the defect.
        avoid: rewrites the affected parts of a model; returns their number. None if only options
            help.
        occurs: whether a model is affected; for defects that options avoid.
        options: options of the device's compiler that avoid it.
        hints: values of INFERENCE_PRECISION_HINT with the defect; empty for all.
        ends_process: whether compiling the reproducer crashes the process.
    """

    name: str
    summary: str
    condition: str
    devices: tuple[str, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    report: str
    reproducer: Callable[[], Reproducer]
    avoid: Callable[[ov.Model], int] | None = None
    occurs: Callable[[ov.Model], bool] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    ends_process: bool = False


def measure(
    defect: KnownDefect, *, options: Mapping[str, str] | None = None, is_avoided: bool = False
) -> float:
    """Returns the largest error of a defect's reproducer; infinite if NaNs differ.

    Args:
        defect: run on the first of its devices.
        options: options of the device's compiler.
        is_avoided: whether to rewrite the model first, as compilation does.
    """
    from npu_compiler.openvino_core import openvino_core  # late: needs openvino

    made = defect.reproducer()
    if is_avoided:
        assert defect.avoid is not None
        defect.avoid(made.model)
    properties = {"INFERENCE_PRECISION_HINT": made.hint, **(options or {})}
    compiled = openvino_core().compile_model(made.model, defect.devices[0], properties)
    request = compiled.create_infer_request()
    for inputs in made.before:
        request.infer(list(inputs))
    found = request.infer(list(made.inputs))[0]
    if not np.array_equal(np.isnan(found), np.isnan(made.expected)):
        return float("inf")
    return float(np.nanmax(np.abs(found - made.expected), initial=0.0))


def version_number(text: str) -> tuple[int, ...]:
    """Parses a release, such as "2026.4.1-21234-..." to (2026, 4, 1)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found.group().split("."))) if found else ()
