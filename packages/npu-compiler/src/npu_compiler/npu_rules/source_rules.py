"""The rules of the NPU's compiler: read from its source of 2024, corrected by what compilers took.

tools/npu_rules.py wrote npu_rules.json. Each row of corrections.json names the first release of
OpenVINO that it holds for, and where it was seen, if that is a later one: what the newest compiler
refuses is taken to be refused by older ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["GENERATIONS", "NEWEST", "OLDEST", "SourceRules", "source_rules"]

# NPU 3720 is in Meteor Lake, NPU 4000 in Lunar Lake.
GENERATIONS = ("3720", "4000")
# Releases of OpenVINO whose compilers the rules were held against. What the newest takes is
# accepted; what the oldest refuses is written in another form, since drivers have older compilers.
OLDEST, NEWEST = "2026.0.0", "2026.4.1"


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
def source_rules(release: str = NEWEST) -> SourceRules:
    """Returns the rules; the files are read once.

    Args:
        release: of OpenVINO, whose compiler the rules are for; "" for the source of 2024.
    """
    folder = Path(__file__).parent
    content: dict[str, Any] = json.loads((folder / "npu_rules.json").read_text())
    for row in json.loads((folder / "corrections.json").read_text())["rows"]:
        if _order(row["release"]) <= _order(release):
            _correct(content, row)
    return SourceRules(content)


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part)


def _correct(content: dict[str, Any], row: dict[str, Any]) -> None:
    source = f"seen in the compiler of OpenVINO {row.get('seen', row['release'])}"
    for name in row.get("layers", ()):
        layer = content["layers"][name]
        for operand in layer["operands"]:
            if operand["types"] is not None:
                operand["types"] = sorted({*operand["types"], *row.get("types", ())})
        variable = row.get("variable", ())
        layer["constants"] = [one for one in layer["constants"] if one["operand"] not in variable]
    for one in row.get("operations", ()):
        content["operations"].append({"layer": "", "inputs": {}, **one})
    if "drop" in row:
        dropped = row["drop"].items()
        content["conditions"] = [one for one in content["conditions"] if not dropped <= one.items()]
    for one in row.get("conditions", ()):
        content["conditions"].append({**one, "source": source})


def _is(row: dict[str, Any], kind: str) -> bool:
    return bool(row["type"] == kind)
