"""The NPU compiler's estimate of one run, with a lower bound by published figures."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino as ov

from npu_command.output import render_page
from npu_compiler.errors import ExportError
from npu_compiler.exported.manifest import read_manifest
from npu_compiler.npu_rules.operations import varying_operations
from npu_compiler.openvino_core import openvino_core
from npu_compiler.roofline.bound import BOUND_NOTE, TimeBound, bound_model, generation_figures
from npu_compiler.target_compiler import (
    ESTIMATE_NOTE,
    Target,
    TargetReport,
    compile_if_installed,
    find_target,
)
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from torch import nn

__all__ = ["TimeEstimate", "estimate", "estimate_folder", "estimate_model"]

_TEMPLATE = Path(__file__).with_name("page.html")
_NO_BOUND = "unknown: no width and speed of this generation's memory was published"


@dataclass(frozen=True)
class TimeEstimate:
    """The compiler's time estimate of one run of a program, and a lower bound.

    Attributes:
        name: name of the program.
        target: the NPU.
        report: the compiler's report; None without one.
        missing: the reason for a missing estimate, with a fix; "" if there is one.
        bound: lower bound by published figures; None if they are not published for this generation.
    """

    name: str
    target: Target
    report: TargetReport | None
    missing: str
    bound: TimeBound | None

    @property
    def seconds(self) -> float | None:
        """The compiler's estimate in seconds, or None."""
        if self.report is None or self.report.estimate is None:
            return None
        return self.report.estimate.latency_ms / 1e3

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields as JSON-compatible values, with a note on their kind."""
        return {
            "name": self.name,
            "target": dataclasses.asdict(self.target),
            "note": ESTIMATE_NOTE,
            "seconds": self.seconds,
            "missing": self.missing,
            "report": None if self.report is None else self.report.as_dict(),
            "bound": None if self.bound is None else self.bound.as_dict(),
        }

    def to_json(self) -> str:
        """Returns as_dict() as a JSON object."""
        return json.dumps(self.as_dict(), indent=2)

    def to_html(self) -> str:
        """Returns the estimate as a self-contained HTML page."""
        figures = {} if self.bound is None else dataclasses.asdict(self.bound.generation)
        rows = [(key, row) for key, row in figures.items() if isinstance(row, dict)]
        return render_page(
            _TEMPLATE,
            found=self,
            bound=self.bound,
            estimate=self._estimate_text(),
            no_bound=_NO_BOUND,
            note=BOUND_NOTE,
            figures=rows,
        )

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.target}", f"estimate: {self._estimate_text()}"]
        lines.append(f"lower bound: {_NO_BOUND if self.bound is None else self.bound}")
        return "\n".join(lines)

    def _estimate_text(self) -> str:
        if self.report is None or self.report.estimate is None:
            return f"none. {self.missing}"
        return str(self.report.estimate)


@public_call
def estimate(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
    target: str = "lunar-lake",
) -> TimeEstimate:
    """Estimates the time of a run on an NPU with its compiler, without measurement.

    Args:
        model: a torch module that becomes one program.
        example_inputs: positional arguments of a call; the estimate is for their sizes.
        kwargs: keyword arguments.
        target: the NPU, such as "lunar-lake" or "4000"; see `npu-compiler target list`.

    Returns:
        The compiler's estimate if one is installed, and a lower bound by published figures.

    Raises:
        ExportError: [export-capture] if the model is not a single graph.
        LoweringError: for a call that programs cannot have.
        OptionError: [unknown-target] if no NPU generation has this name.
        TargetError: [target-cache] if the compiler's files cannot be written.
    """
    find_target(target)
    from npu_compiler.exported.write import export

    with tempfile.TemporaryDirectory(prefix="npu-estimate-") as place:
        folder = Path(place) / "model"
        export(model, example_inputs, folder, kwargs=kwargs)
        return estimate_folder(folder, target=target)


def estimate_folder(path: str | os.PathLike[str], *, target: str = "lunar-lake") -> TimeEstimate:
    """Estimates the time of a run of an exported model; arguments and errors as for `estimate`.

    Raises:
        ExportError: if the folder is not an exported model, or is damaged; [estimate-sizes] for
            dynamic shapes.
    """
    find_target(target)
    folder = Path(path)
    name = read_manifest(folder).name
    model = openvino_core().read_model(next(folder.glob("*.xml")))
    return estimate_model(model, name=name, target=target)


def estimate_model(
    model: ov.Model,
    *,
    name: str,
    target: str = "lunar-lake",
    options: Mapping[str, str] | None = None,
) -> TimeEstimate:
    """Estimates the time of a run of an OpenVINO model; see `estimate`.

    Raises:
        ExportError: [estimate-sizes] for dynamic shapes.
        OptionError: [unknown-target] if no NPU generation has this name.
    """
    chosen = find_target(target)
    varying = varying_operations(model)
    if varying:
        raise ExportError(
            f"{name}: sizes must be static for an estimate, got a dynamic size of {varying[0]}. "
            "Export it without dynamic=, once per size.",
            code="estimate-sizes",
        )
    figures = generation_figures(chosen.number)
    bound = None if figures is None else bound_model(model, name=name, generation=figures)
    report, failure = compile_if_installed(model, chosen, options)
    missing = str(failure) if report is None else ""
    if report is not None and report.estimate is None:
        missing = "The compiler printed none."
        if not report.is_accepted:
            missing = f"The compiler refuses it: {report.reason}"
    return TimeEstimate(name, chosen, report, missing, bound)
