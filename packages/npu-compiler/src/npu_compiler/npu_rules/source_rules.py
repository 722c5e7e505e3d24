"""The rules that were read from the NPU compiler's source, as tools/npu_rules.py wrote them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["GENERATIONS", "SourceRules", "source_rules"]

# NPU 3720 is in Meteor Lake, NPU 4000 in Lunar Lake.
GENERATIONS = ("3720", "4000")


@dataclass(frozen=True)
class SourceRules:
    """The data with the questions that a check asks of it.

    Attributes:
        content: what the file holds.
    """

    content: dict[str, Any]

    def operation(self, kind: str, opset: str) -> dict[str, Any] | None:
        """Returns how the importer takes an operation, or None where it does not."""
        return self._found("operations", kind, opset)

    def rewriting(self, kind: str, opset: str) -> dict[str, Any] | None:
        """Returns the pass that replaces an operation before the import, if there is one."""
        return self._found("rewritten", kind, opset)

    def opsets(self, kind: str) -> tuple[str, ...]:
        """Returns the versions of an operation that are taken."""
        rows = [*self.content["operations"], *self.content["rewritten"]]
        return tuple(sorted({row["opset"] for row in rows if _is(row, kind)}))

    def layer(self, name: str) -> dict[str, Any]:
        """Returns a layer's operands and which of them are constants; nothing for what has none."""
        found: dict[str, Any] = self.content["layers"].get(name, {"operands": [], "constants": []})
        return found

    def conditions(self, kind: str, opset: str) -> list[dict[str, Any]]:
        """Returns the conditions on an operation, with those on every one."""
        return [
            row
            for row in self.content["conditions"]
            if (not row["operations"] or kind in row["operations"]) and row["opset"] in ("", opset)
        ]

    def skipped_test(self, kind: str, generation: str) -> dict[str, Any] | None:
        """Returns the pattern by which all tests of an operation are skipped on a generation."""
        for row in self.content["skipped_tests"]:
            if row["operation"] == kind and generation in row["generations"]:
                found: dict[str, Any] = row
                return found
        return None

    def place(self, table: str, line: int, file: str | None = None) -> str:
        """Returns "file:line at commit", where a rule was read.

        Args:
            table: which of the data's tables the rule is in.
            line: of the file.
            file: where the rule names its own.
        """
        commit = self.content["commit"][:12]
        return f"{file or self.content['files'][table]}:{line} at {commit}"

    def _found(self, table: str, kind: str, opset: str) -> dict[str, Any] | None:
        for row in self.content[table]:
            if _is(row, kind) and row["opset"] == opset:
                found: dict[str, Any] = row
                return found
        return None


@cache
def source_rules() -> SourceRules:
    """Returns the rules; the file is read once."""
    text = (Path(__file__).parent / "npu_rules.json").read_text()
    return SourceRules(json.loads(text))


def _is(row: dict[str, Any], kind: str) -> bool:
    return bool(row["type"] == kind)
