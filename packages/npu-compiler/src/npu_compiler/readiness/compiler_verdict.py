"""The verdict of the NPU's own compiler as a finding, with the place in the model that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import openvino as ov

from npu_compiler.graph.kept_origins import kept_origins
from npu_compiler.npu_rules.finding import Finding
from npu_compiler.npu_rules.whole_programs import varying_operations
from npu_compiler.target_compiler import Target, TargetReport, compile_if_installed

__all__ = ["compiler_verdict"]

_RULE = "the NPU's compiler"


def compiler_verdict(
    model: ov.Model,
    target: Target,
    rules: Sequence[Finding],
    options: Mapping[str, str] | None = None,
) -> tuple[Finding, TargetReport | None]:
    """Compiles a model for a target.

    Args:
        model: stays as it is.
        target: to compile for.
        rules: the findings of the rules, which a compiler overrules.
        options: further options of the compiler.

    Returns:
        The finding, with the compiler's report. Without a usable compiler the verdict is unknown,
        and the finding has the command that brings one.
    """
    if varying_operations(model):
        return _finding("unknown", "left out: it takes static shapes alone"), None
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
        detail += " The rules take it; the compiler decides."
    return _finding("refused", detail, operation=operation, node=node, module=module, line=line)


def _finding(verdict: str, detail: str, **place: str) -> Finding:
    return Finding(_RULE, verdict, detail, judge="compiler", **place)
