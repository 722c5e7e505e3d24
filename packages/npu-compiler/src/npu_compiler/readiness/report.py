"""What a check found, as an object, a table and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_command.pages import render_page
from npu_compiler.npu_rules.finding import Finding

__all__ = ["Readiness", "readiness_page"]

_TEMPLATE = Path(__file__).with_name("page.html")
_MARKS = {"accepted": "ok", "refused": "NO", "unknown": "??"}


@dataclass(frozen=True)
class Readiness:
    """What is known of a model and an NPU.

    Attributes:
        name: of the model.
        findings: one per rule.
    """

    name: str
    findings: tuple[Finding, ...]

    @property
    def is_ready(self) -> bool:
        """Whether nothing was refused; what is unknown stays so."""
        return all(finding.verdict != "refused" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """What comes of the findings, in words."""
        return "nothing stands against an NPU" if self.is_ready else "an NPU would refuse it"

    def as_dict(self) -> dict[str, Any]:
        """Returns everything as what JSON can hold."""
        return {**dataclasses.asdict(self), "is_ready": self.is_ready}

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
    """Returns what was found of some programs as a page that loads nothing from elsewhere."""
    return render_page(_TEMPLATE, title=title, found=found)
