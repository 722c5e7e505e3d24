"""The result of a check, as an object, a table and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_command.pages import render_page
from npu_compiler.npu_rules.finding import Finding
from npu_compiler.target_compiler import Target, TargetReport

__all__ = ["Readiness", "readiness_page"]

_TEMPLATE = Path(__file__).with_name("page.html")
_MARKS = {"accepted": "ok", "refused": "NO", "unknown": "??"}


@dataclass(frozen=True)
class Readiness:
    """What is known of a model and an NPU.

    Attributes:
        name: of the model.
        target: the NPU.
        findings: one per rule, one per operation that breaks one, and the compiler's last.
        report: of the NPU's compiler; None if it compiled nothing.
    """

    name: str
    target: Target
    findings: tuple[Finding, ...]
    report: TargetReport | None

    @property
    def is_ready(self) -> bool:
        """Whether the compiler accepts it or, without one, no rule refuses it."""
        if self.report is not None:
            return self.report.is_accepted
        return all(finding.verdict != "refused" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.report is not None:
            return f"{'accepted' if self.is_ready else 'refused'} by the compiler of {self.target}"
        if self.is_ready:
            return f"no rule refuses it for {self.target}"
        return f"refused by the rules for {self.target}"

    def as_dict(self) -> dict[str, Any]:
        """Returns everything as what JSON can hold."""
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
    """Returns the checks of some programs as a page that loads nothing from elsewhere."""
    return render_page(_TEMPLATE, title=title, found=found)
