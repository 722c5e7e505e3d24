"""Readiness: checks whether an NPU's compiler accepts a model, and lists the reasons."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino as ov

from npu_command.output import render_page
from npu_compiler.exported.manifest import read_manifest
from npu_compiler.graph.kept_origins import kept_origins
from npu_compiler.npu_rules.operations import (
    Finding,
    check_operations,
    check_whole_program,
    varying_operations,
)
from npu_compiler.npu_rules.rewriting import REWRITTEN
from npu_compiler.npu_rules.source_rules import GENERATIONS
from npu_compiler.openvino_core import openvino_core
from npu_compiler.target_compiler import (
    Target,
    TargetReport,
    compile_if_installed,
    find_target,
    vendor_of,
)
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from torch import nn

    from npu_compiler.half_precision import HalfPrecision

__all__ = [
    "HALF_BUDGET_S",
    "Readiness",
    "check",
    "check_file",
    "check_folder",
    "check_model",
    "compiler_verdict",
    "readiness_page",
]

_TEMPLATE = Path(__file__).with_name("readiness.html")
# Seconds for the search on half precision, unless the caller gives others.
HALF_BUDGET_S = 20.0
_HALF = "half precision"
_SHOWN = 3  # calls listed in its finding
_MARKS = {"accepted": "ok", "refused": "NO", "unknown": "??"}


@dataclass(frozen=True)
class Readiness:
    """The checks of a model for an NPU.

    Attributes:
        name: of the model.
        target: the NPU.
        findings: one per rule, one per operation that breaks one, half precision's, and the
            compiler's last.
        report: of the NPU's compiler; None if it compiled nothing.
    """

    name: str
    target: Target
    findings: tuple[Finding, ...]
    report: TargetReport | None

    @property
    def is_accepted(self) -> bool:
        """Whether the compiler accepts it or, without one, no rule refuses it."""
        if self.report is not None:
            return self.report.is_accepted
        return all(one.verdict != "refused" or one.rule == _HALF for one in self.findings)

    @property
    def is_ready(self) -> bool:
        """Whether it is accepted and no finding shows that half precision changes its results."""
        return self.is_accepted and not self._is_changed

    @property
    def verdict(self) -> str:
        """The verdict as a sentence."""
        if self.report is not None:
            text = "accepted" if self.is_accepted else "refused"
            text += f" by the compiler of {self.target}"
        elif self.is_accepted:
            text = f"no rule refuses it for {self.target}"
        else:
            text = f"refused by the rules for {self.target}"
        return f"{text}, but half precision changes its results" if self._is_changed else text

    @property
    def _is_changed(self) -> bool:
        return any(one.verdict == "refused" and one.rule == _HALF for one in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields as JSON-compatible values."""
        return {
            **dataclasses.asdict(self),
            "report": None if self.report is None else self.report.as_dict(),
            "is_ready": self.is_ready,
        }

    def to_json(self) -> str:
        """Returns everything as a JSON object."""
        return json.dumps(self.as_dict(), indent=2)

    def __str__(self) -> str:
        width = max(len(finding.rule) for finding in self.findings)
        lines = [
            f"{_MARKS[finding.verdict]}  {finding.rule:{width}}  {finding.detail}"
            + (f" [{finding.source}]" if finding.source else "")
            for finding in self.findings
        ]
        return "\n".join([f"{self.name}: {self.verdict}", *lines])


def readiness_page(title: str, found: Sequence[Readiness]) -> str:
    """Returns the checks of programs as a self-contained HTML page."""
    return render_page(_TEMPLATE, title=title, found=found)


_RULE = "the NPU's compiler"


def compiler_verdict(
    model: ov.Model,
    target: Target,
    rules: Sequence[Finding],
    options: Mapping[str, str] | None = None,
) -> tuple[Finding, TargetReport | None]:
    """Returns the verdict of a target's compiler on a model, which overrides the rules' findings.

    Without a usable compiler the verdict is unknown, and the finding has the command that installs
    one.
    """
    if varying_operations(model):
        return _finding("unknown", "left out: it requires static shapes"), None
    report, failure = compile_if_installed(model, target, options)
    if report is None:
        return _finding("unknown", str(failure)), None
    refusing = dict.fromkeys(one.rule for one in rules if one.verdict == "refused")
    if report.is_accepted:
        detail = f"compiled in {report.duration_s:.1f} s to {report.blob_bytes / 1e6:.1f} MB"
        if report.estimate is not None:
            detail += f"; {report.estimate}"
        if refusing:
            detail += f". The rules refuse it ({', '.join(refusing)}); the compiler decides."
        return _finding("accepted", detail), report
    return _refusal(report, model, has_rules=bool(refusing)), report


def _refusal(report: TargetReport, model: ov.Model, *, has_rules: bool) -> Finding:
    operation, node, module, line = "", "", "", ""
    for one in model.get_ordered_ops():
        if report.operation and one.get_friendly_name() == report.operation:
            info = one.get_type_info()
            operation = f"{info.name} ({info.version_id})"
            node = report.operation.partition("/")[0]
            module, line = kept_origins(model).get(node, ("", ""))
            break
    begins = "" if report.operation in report.reason else "begins with "
    place = ", ".join(filter(None, (f"{begins}{operation} of {report.operation}", module, line)))
    detail = f"{place}: {report.reason}" if operation else report.reason
    if not has_rules:
        detail += " The rules accept it; the compiler decides."
    return _finding("refused", detail, operation=operation, node=node, module=module, line=line)


def _finding(verdict: str, detail: str, **place: str) -> Finding:
    return Finding(_RULE, verdict, detail, judge="compiler", **place)


# The NPU's compiler decides if it is installed. Without it, rules derived from its source of 2024
# give a quick answer; npu_compiler.npu_rules.operations has them.


@public_call
def check(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
    target: str = "lunar-lake",
    rules_only: bool = False,
    half_budget_s: float = HALF_BUDGET_S,
) -> Readiness:
    """Checks whether an NPU's compiler accepts a model; no NPU is needed.

    Half precision, in which an NPU computes, is compared with float32 on the example inputs, as
    [check_half][npu_compiler.check_half] does.

    Args:
        model: a torch module.
        example_inputs: positional arguments of a call; the check uses their sizes.
        kwargs: arguments by name.
        target: the NPU, such as "lunar-lake" or "4000"; see `npu-compiler target list`.
        rules_only: skip the compiler, which takes seconds to minutes the first time, and the check
            of half precision.
        half_budget_s: seconds for half precision; 0 leaves it out. A finding lists the parts that
            the budget left out.

    Returns:
        The compiler's verdict if one is installed, else that of the rules, with one finding per
        rule and one per operation that breaks one. The first finding refuses a model that cannot
        become one program, and each call that prevents it has a finding.

    Raises:
        OptionError: [unknown-target] no NPU generation has this name.
        TargetError: [target-cache] the compiler's files cannot be written.
    """
    chosen = find_target(target, graphs=None)
    from npu_compiler.errors import ExportError, LoweringError
    from npu_compiler.exported.write import export

    if vendor_of(chosen).takes_graphs:
        return _check_graph(model, example_inputs, kwargs or {}, chosen)
    with tempfile.TemporaryDirectory(prefix="npu-check-") as place:
        folder = Path(place) / "model"
        try:
            export(model, example_inputs, folder, kwargs=kwargs)
        except (ExportError, LoweringError) as failure:
            findings = (
                Finding("one program", "refused", str(failure)),
                *_calls(model, example_inputs, kwargs or {}),
            )
            found = Readiness(type(model).__name__, chosen, findings, None)
        else:
            found = check_folder(folder, target=target, rules_only=rules_only, half_budget_s=0)
    from npu_compiler.half_precision import check_half

    budget_s = 0 if rules_only else half_budget_s
    return _with_half(
        found,
        budget_s,
        lambda: check_half(model, example_inputs, kwargs=kwargs, mend=True, budget_s=half_budget_s),
    )


def _with_half(found: Readiness, budget_s: float, search: Callable[[], HalfPrecision]) -> Readiness:
    """Returns a check with a finding on half precision, if there are seconds for it."""
    if budget_s <= 0:
        return found
    findings = [*found.findings]
    place = len(findings) - (findings[-1].rule == _RULE)
    findings.insert(place, _half_finding(search, budget_s))
    return replace(found, findings=tuple(findings))


def _half_finding(search: Callable[[], HalfPrecision], budget_s: float) -> Finding:
    from npu_compiler.errors import CompilerError

    try:
        half = search()
    except (CompilerError, RuntimeError, NotImplementedError) as failure:
        reason = " ".join(str(failure).split())[:300]
        return Finding(_HALF, "unknown", f"left out: {reason}")
    listed = [str(one) for one in half.findings[:_SHOWN]]
    if len(half.findings) > _SHOWN:
        listed.append(f"{len(half.findings) - _SHOWN} more calls")
    left_out = f"left out after {budget_s:g} s: {half.left_out}" if half.left_out else ""
    if half.calls_left_out:
        harm = f"so far {'; '.join(listed)}" if listed else "no overflow so far"
        return Finding(_HALF, "unknown", f"{left_out}; {harm}")
    is_harmless = half.error_before <= half.tolerance
    detail = (
        f"outputs are off by {half.error_before:.1e}, "
        f"{'within' if is_harmless else 'more than'} {half.tolerance:.0e}"
    )
    if listed:
        detail += f": {'; '.join(listed)}"
    if half.keep_float32:
        names = json.dumps(list(half.keep_float32))
        detail += f'. Compile with {{"keep_float32": {names}}}: off by {half.error:.1e}'
    if left_out:
        detail += f". {left_out[0].upper()}{left_out[1:]}"
    return Finding(_HALF, "accepted" if is_harmless else "refused", detail)


def _check_graph(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Target
) -> Readiness:
    """Checks a model by a compiler that takes graphs."""
    from npu_compiler.errors import ExportError
    from npu_compiler.exported.capture import capture_module
    from npu_compiler.exported.vendor_graphs import compile_captured, graph_program
    from npu_compiler.options import CompilerConfig

    name = type(model).__name__
    try:
        captured = capture_module(model, args, kwargs, {}, CompilerConfig(target=target.number))
    except ExportError as failure:
        return Readiness(name, target, (Finding("one program", "refused", str(failure)),), None)
    report, refused = compile_captured(graph_program(name, captured), target)
    if report is None:
        return Readiness(name, target, tuple(_finding("refused", one) for one in refused), None)
    detail = f"compiled in {report.duration_s:.1f} s to {report.blob_bytes / 1e6:.1f} MB"
    verdict = "accepted" if report.is_accepted else "refused"
    return Readiness(name, target, (_finding(verdict, report.reason or detail),), report)


def _calls(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Finding]:
    """Returns a finding for the calls that can be in a program, and one per other call.

    A model that cannot be captured has no findings on its calls.
    """
    from npu_compiler.errors import ExportError
    from npu_compiler.exported.capture import capture_module
    from npu_compiler.graph.nodes import is_symbolic, op_name
    from npu_compiler.graph.origins import keep_name, python_line
    from npu_compiler.lowering.capability import refusal
    from npu_compiler.options import CompilerConfig

    config = CompilerConfig(target="openvino")
    try:
        captured = capture_module(model, args, kwargs, {}, config)
    except ExportError:
        return []
    refused: list[Finding] = []
    accepted: Counter[str] = Counter()
    for node in captured.program.graph_module.graph.nodes:
        if node.op != "call_function" or is_symbolic(node):
            continue
        reason = refusal(node, config)
        if reason is None:
            accepted[op_name(node.target)] += 1
            continue
        line, module = python_line(node), keep_name(node)
        place = ", ".join(filter(None, (node.name, module, line)))
        detail = f"{op_name(node.target)} ({place}): {reason}"
        refused.append(
            Finding(
                "each call",
                "refused",
                detail,
                operation=op_name(node.target),
                node=node.name,
                line=line,
                module=module,
            )
        )
    if not accepted:
        return refused
    listed = ", ".join(f"{count} {name}" for name, count in sorted(accepted.items()))
    detail = f"{listed}: these become operations of a program"
    return [Finding("each call", "accepted", detail), *refused]


def check_file(
    path: str | os.PathLike[str],
    *,
    target: str = "lunar-lake",
    rules_only: bool = False,
    half_budget_s: float = HALF_BUDGET_S,
) -> Readiness:
    """Checks a program that torch.export.save wrote, with its own example inputs; see `check`.

    Raises:
        ExportError: [saved-program] for another file.
        OptionError: [unknown-target] no NPU generation has this name.
    """
    find_target(target, graphs=None)
    from npu_compiler.exported.capture import read_saved_program

    program = read_saved_program(path)
    args, kwargs = program.example_inputs
    found = check(
        program.module(),
        args,
        kwargs=kwargs,
        target=target,
        rules_only=rules_only,
        half_budget_s=half_budget_s,
    )
    return replace(found, name=Path(path).name)


def check_folder(
    path: str | os.PathLike[str],
    *,
    target: str = "lunar-lake",
    rules_only: bool = False,
    half_budget_s: float = HALF_BUDGET_S,
) -> Readiness:
    """Checks a folder that npu_compiler.export made; arguments and errors as of `check`.

    The folder has no example inputs, so half precision is compared on random ones.

    Raises:
        ExportError: it is not an exported folder, or is damaged.
    """
    find_target(target)
    folder = Path(path)
    name = read_manifest(folder).name
    model = openvino_core().read_model(next(folder.glob("*.xml")))
    found = check_model(model, name=name, target=target, rules_only=rules_only)

    def search() -> HalfPrecision:
        from npu_compiler.half_folder import check_half_folder  # late: with torch

        return check_half_folder(folder, budget_s=half_budget_s)

    return _with_half(found, 0 if rules_only else half_budget_s, search)


def check_model(
    model: ov.Model,
    *,
    name: str,
    target: str = "lunar-lake",
    rules_only: bool = False,
    options: Mapping[str, str] | None = None,
) -> Readiness:
    """Checks a program of OpenVINO, under a name in the report; see `check`."""
    chosen = find_target(target)
    findings = [Finding("one program", "accepted", f"{len(model.get_ops())} operations")]
    findings += check_whole_program(model)
    if chosen.number in GENERATIONS:
        findings += check_operations(model, generation=chosen.number)
    else:
        known = " and ".join(GENERATIONS)
        findings.append(
            Finding("operation types", "unknown", f"there are rules only for NPU {known}")
        )
    if model.has_rt_info(list(REWRITTEN)):
        done = json.loads(str(model.get_rt_info(list(REWRITTEN)).value))
        findings.append(Finding("equal forms", "accepted", "; ".join(done)))
    if rules_only:
        return Readiness(name, chosen, tuple(findings), None)
    verdict, report = compiler_verdict(model, chosen, findings, options)
    return Readiness(name, chosen, (*findings, verdict), report)
