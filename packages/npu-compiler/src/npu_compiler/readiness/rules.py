"""The rules that a model is checked against, for a module and for an exported folder.

What is read from the source of the NPU's compiler is in npu_compiler.npu_rules.operations. Whether
a model fits the memory, and how fast it is, cannot be found out here, which the report says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import openvino as ov
from torch import nn

from npu_compiler.errors import OptionError
from npu_compiler.exported.manifest import read_manifest
from npu_compiler.npu_rules.finding import Finding
from npu_compiler.npu_rules.operations import check_operations
from npu_compiler.npu_rules.rewriting import REWRITTEN
from npu_compiler.npu_rules.source_rules import GENERATIONS
from npu_compiler.npu_rules.whole_programs import check_whole_program
from npu_compiler.openvino_core import openvino_core
from npu_compiler.readiness.report import Readiness
from npu_runtime.public_calls import public_call

__all__ = ["check", "check_file", "check_folder", "check_model"]

# The plugin computes in half precision where the CPU plugin computes in float32.
_TOLERANCE = 3e-2
_TIMEOUT_S = 600.0


@public_call
def check(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
    generation: str = "4000",
) -> Readiness:
    """Says whether a model is what an NPU accepts; no NPU is needed.

    Args:
        model: a torch module.
        example_inputs: positional arguments of a call; their sizes are those that are checked.
        kwargs: arguments by name.
        generation: "3720" (Meteor Lake) or "4000" (Lunar Lake).

    Returns:
        One finding per rule, and one per operation that breaks one. A model that cannot become one
        program is refused by the first.

    Raises:
        OptionError: [option-value] a generation whose rules are not known.
    """
    _check_generation(generation)
    from npu_compiler.errors import ExportError, LoweringError
    from npu_compiler.exported.write import export

    with tempfile.TemporaryDirectory(prefix="npu-check-") as place:
        folder = Path(place) / "model"
        try:
            export(model, example_inputs, folder, kwargs=kwargs)
        except (ExportError, LoweringError) as failure:
            finding = Finding("one program", "refused", str(failure))
            return Readiness(type(model).__name__, (finding,))
        return check_folder(folder, generation=generation)


def check_file(path: str | os.PathLike[str], *, generation: str = "4000") -> Readiness:
    """Says the same of a program that torch.export.save wrote, with its own example inputs.

    Raises:
        ExportError: [saved-program] for another file.
        OptionError: [option-value] a generation whose rules are not known.
    """
    _check_generation(generation)
    from npu_compiler.exported.saved_program import read_saved_program

    program = read_saved_program(path)
    args, kwargs = program.example_inputs
    found = check(program.module(), args, kwargs=kwargs, generation=generation)
    return replace(found, name=Path(path).name)


def check_folder(path: str | os.PathLike[str], *, generation: str = "4000") -> Readiness:
    """Says whether an exported model is what an NPU accepts.

    Args:
        path: a folder that npu_compiler.export made.
        generation: "3720" (Meteor Lake) or "4000" (Lunar Lake).

    Raises:
        ExportError: the folder is not one, or is damaged.
        OptionError: [option-value] a generation whose rules are not known.
    """
    _check_generation(generation)
    folder = Path(path)
    manifest = read_manifest(folder)
    xml = next(folder.glob("*.xml"))
    model = openvino_core().read_model(xml)
    findings = list(check_model(model, name=manifest.name, generation=generation).findings)
    if findings[1].verdict == "accepted":
        findings += _run_plugin(xml)
    else:
        findings.append(
            Finding("the NPU plugin", "unknown", "not asked: it takes static shapes alone")
        )
    findings.append(
        Finding(
            "the driver's compiler", "unknown",
            "needs an NPU: memory, speed, and what a newer driver's compiler takes",
        )
    )  # fmt: skip
    return Readiness(manifest.name, tuple(findings))


def check_model(model: ov.Model, *, name: str, generation: str = "4000") -> Readiness:
    """Compares a program with the rules alone; no plugin is asked.

    Args:
        model: of OpenVINO.
        name: of it, in the report.
        generation: "3720" (Meteor Lake) or "4000" (Lunar Lake).

    Raises:
        OptionError: [option-value] a generation whose rules are not known.
    """
    _check_generation(generation)
    findings = [Finding("one program", "accepted", f"{len(model.get_ops())} operations")]
    findings += check_whole_program(model)
    findings += check_operations(model, generation=generation)
    if model.has_rt_info(list(REWRITTEN)):
        done = json.loads(str(model.get_rt_info(list(REWRITTEN)).value))
        findings.append(Finding("equal forms", "accepted", "; ".join(done)))
    return Readiness(name, tuple(findings))


def _check_generation(generation: str) -> None:
    if generation not in GENERATIONS:
        raise OptionError(
            f"npu_compiler.check: generation is one of {', '.join(GENERATIONS)}; got "
            f"{generation!r}. Name one of these.",
            code="option-value",
        )


def _run_plugin(xml: Path) -> Iterator[Finding]:
    command = [sys.executable, "-m", "npu_compiler.readiness.plugin", str(xml)]
    rule = "the NPU plugin"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield Finding(rule, "unknown", f"took longer than {_TIMEOUT_S:.0f} s")
        return
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        yield Finding(rule, "refused", f"the plugin's process ended with {name}")
        return
    if done.returncode > 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding(rule, "unknown", f"could not be asked: {last}")
        return
    result = json.loads(done.stdout.splitlines()[-1])
    if result["step"] != "done":
        yield Finding(rule, "refused", f"it cannot {result['step']} it: {result['failure']}")
        return
    yield Finding(rule, "accepted", "its path for machines without an NPU compiles and runs it")
    error = float(result["error"])
    verdict = "accepted" if error <= _TOLERANCE else "refused"
    yield Finding(
        "equal results", verdict,
        f"largest difference from float32 {error:.1e} of the largest value, bound {_TOLERANCE:.0e}",
    )  # fmt: skip
