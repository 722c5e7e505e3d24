"""What a check found, as an object, a table and JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from npu_compiler.npu_rules.finding import Finding

__all__ = ["Readiness"]

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
        verdict = "nothing stands against an NPU" if self.is_ready else "an NPU would refuse it"
        return "\n".join([f"{self.name}: {verdict}", *lines])
