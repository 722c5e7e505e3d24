"""Checks of a module, a saved program and an exported folder for an NPU.

The NPU's compiler decides if it is installed. The rules that were read from its source of 2024 are
the quick answer without it; npu_compiler.npu_rules.operations has them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino as ov

from npu_compiler.exported.manifest import read_manifest
from npu_compiler.npu_rules.finding import Finding
from npu_compiler.npu_rules.operations import check_operations
from npu_compiler.npu_rules.rewriting import REWRITTEN
from npu_compiler.npu_rules.source_rules import GENERATIONS
from npu_compiler.npu_rules.whole_programs import check_whole_program
from npu_compiler.openvino_core import openvino_core
from npu_compiler.readiness.compiler_verdict import compiler_verdict
from npu_compiler.readiness.report import Readiness
from npu_compiler.target_compiler import find_target
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from torch import nn

__all__ = ["check", "check_file", "check_folder", "check_model"]


@public_call
def check(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
    target: str = "lunar-lake",
    rules_only: bool = False,
) -> Readiness:
    """Checks whether an NPU's compiler accepts a model; no NPU is needed.

    Args:
        model: a torch module.
        example_inputs: positional arguments of a call; their sizes are those that are checked.
        kwargs: arguments by name.
        target: the NPU, such as "lunar-lake" or "4000"; see `npu-compiler target list`.
        rules_only: whether the compiler is left out, which takes seconds to minutes the first time.

    Returns:
        The compiler's verdict if one is installed, else that of the rules, with one finding per
        rule and one per operation that breaks one. A model that cannot become one program is
        refused by the first.

    Raises:
        OptionError: [unknown-target] no NPU generation has this name.
        TargetError: [target-cache] the compiler's files cannot be written.
    """
    chosen = find_target(target)
    from npu_compiler.errors import ExportError, LoweringError
    from npu_compiler.exported.write import export

    with tempfile.TemporaryDirectory(prefix="npu-check-") as place:
        folder = Path(place) / "model"
        try:
            export(model, example_inputs, folder, kwargs=kwargs)
        except (ExportError, LoweringError) as failure:
            finding = Finding("one program", "refused", str(failure))
            return Readiness(type(model).__name__, chosen, (finding,), None)
        return check_folder(folder, target=target, rules_only=rules_only)


def check_file(
    path: str | os.PathLike[str], *, target: str = "lunar-lake", rules_only: bool = False
) -> Readiness:
    """Checks a program that torch.export.save wrote, with its own example inputs; see `check`.

    Raises:
        ExportError: [saved-program] for another file.
        OptionError: [unknown-target] no NPU generation has this name.
    """
    find_target(target)
    from npu_compiler.exported.saved_program import read_saved_program

    program = read_saved_program(path)
    args, kwargs = program.example_inputs
    found = check(program.module(), args, kwargs=kwargs, target=target, rules_only=rules_only)
    return replace(found, name=Path(path).name)


def check_folder(
    path: str | os.PathLike[str], *, target: str = "lunar-lake", rules_only: bool = False
) -> Readiness:
    """Checks an exported model; see `check`.

    Args:
        path: a folder that npu_compiler.export made.
        target: as of `check`.
        rules_only: as of `check`.

    Raises:
        ExportError: the folder is not one, or is damaged.
        OptionError: [unknown-target] no NPU generation has this name.
    """
    find_target(target)
    folder = Path(path)
    name = read_manifest(folder).name
    model = openvino_core().read_model(next(folder.glob("*.xml")))
    return check_model(model, name=name, target=target, rules_only=rules_only)


def check_model(
    model: ov.Model,
    *,
    name: str,
    target: str = "lunar-lake",
    rules_only: bool = False,
    options: Mapping[str, str] | None = None,
) -> Readiness:
    """Checks a program of OpenVINO; see `check`.

    Args:
        model: of OpenVINO.
        name: of it, in the report.
        target: as of `check`.
        rules_only: as of `check`.
        options: further options of the compiler.

    Raises:
        OptionError: [unknown-target] no NPU generation has this name.
    """
    chosen = find_target(target)
    findings = [Finding("one program", "accepted", f"{len(model.get_ops())} operations")]
    findings += check_whole_program(model)
    if chosen.number in GENERATIONS:
        findings += check_operations(model, generation=chosen.number)
    else:
        known = " and ".join(GENERATIONS)
        findings.append(
            Finding("operation types", "unknown", f"there are rules for NPU {known} alone")
        )
    if model.has_rt_info(list(REWRITTEN)):
        done = json.loads(str(model.get_rt_info(list(REWRITTEN)).value))
        findings.append(Finding("equal forms", "accepted", "; ".join(done)))
    if rules_only:
        return Readiness(name, chosen, tuple(findings), None)
    verdict, report = compiler_verdict(model, chosen, findings, options)
    return Readiness(name, chosen, (*findings, verdict), report)
