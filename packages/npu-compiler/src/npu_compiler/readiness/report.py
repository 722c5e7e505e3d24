"""What a check found, as an object, a table and JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

__all__ = ["Finding", "Readiness"]

_MARKS = {"accepted": "ok", "refused": "NO", "unknown": "??"}


@dataclass(frozen=True)
class Finding:
    """One rule and what it said.

    Attributes:
        rule: what an NPU asks for.
        verdict: accepted, refused, or unknown where it cannot be found out here.
        detail: the figures, or what is in the way and what to do.
        operation: type and version of the operation that breaks the rule; "" for a whole model.
        node: the FX node that it comes from.
        line: the Python line of that node, "file.py:123"; "" where it is not known.
        source: file, line and commit of the compiler's source that the rule was read from.
    """

    rule: str
    verdict: str
    detail: str
    operation: str = ""
    node: str = ""
    line: str = ""
    source: str = ""


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

    def to_json(self) -> str:
        """Returns everything as a JSON object."""
        return json.dumps({**dataclasses.asdict(self), "is_ready": self.is_ready}, indent=2)

    def __str__(self) -> str:
        width = max(len(finding.rule) for finding in self.findings)
        lines = [
            f"{_MARKS[finding.verdict]}  {finding.rule:{width}}  {finding.detail}"
            + (f" [{finding.source}]" if finding.source else "")
            for finding in self.findings
        ]
        verdict = "nothing stands against an NPU" if self.is_ready else "an NPU would refuse it"
        return "\n".join([f"{self.name}: {verdict}", *lines])
