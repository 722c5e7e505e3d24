"""Entries of known defects, and the replacement of a node in a model."""

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
    """Gives the users of a node's one result another's, with the node's names."""
    other.set_friendly_name(node.get_friendly_name())
    names = node.get_output_tensor(0).get_names()
    node.output(0).replace(other.output(0))
    other.get_output_tensor(0).set_names(names)


@dataclass(frozen=True)
class Reproducer:
    """A model that shows a defect.

    Attributes:
        model: with static inputs.
        inputs: what to run it on.
        expected: its first result, computed otherwise.
        hint: INFERENCE_PRECISION_HINT to compile with.
        before: inputs of runs of the same request that come first.
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
        summary: what is wrong, in one sentence.
        condition: when, in words.
        devices: OpenVINO's names of the devices that have it, as CPU.
        first, last: releases in which it was seen, as (2026, 4, 1). Releases after the last are
            taken to have it too until the entry's test says otherwise.
        report: an issue of upstream's, or the text of a report to be sent.
        reproducer: makes the smallest model that shows it.
        avoid: rewrites the places of a model where it would occur, and returns how many. None
            where only options help.
        occurs: whether a model has such a place; for defects that options avoid.
        options: of the device's compiler, with which it does not occur.
        ends_process: whether compiling the reproducer ends the process.
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
    ends_process: bool = False


def measure(
    defect: KnownDefect, *, options: Mapping[str, str] | None = None, is_avoided: bool = False
) -> float:
    """Returns the largest error of a defect's reproducer; infinite where NaN stands elsewhere.

    Args:
        defect: of the first of its devices.
        options: for the device's compiler.
        is_avoided: whether the model is rewritten first, as models are before they are compiled.
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
    """Returns the numbers of a release, as (2026, 4, 1) of "2026.4.1-21234-..."."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found.group().split("."))) if found else ()
