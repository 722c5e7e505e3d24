"""Reads the report that pytest writes with --junitxml."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Case", "read_cases"]

_UNHAPPY = ("failure", "error")


@dataclass(frozen=True)
class Case:
    """What came of a test.

    Attributes:
        owner: its class, or its file without ".py".
        name: with its parameters.
        result: "passed", "skipped" or "failed".
        message: of a failure; else "".
    """

    owner: str
    name: str
    result: str
    message: str = ""


def read_cases(report: Path) -> list[Case]:
    """Returns each test once, in order: it failed if it failed anywhere.

    A test can stand in a report twice: for itself, and for what is cleaned up after it.
    """
    found: dict[tuple[str, str], Case] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        place, name = case.get("classname", ""), case.get("name", "")
        failure = next((part for part in case if part.tag in _UNHAPPY), None)
        known = found.get((place, name))
        if failure is None and known is not None and known.result == "failed":
            continue
        result = "skipped" if case.find("skipped") is not None else "passed"
        message = ""
        if failure is not None:
            result, message = "failed", failure.get("message") or ""
        found[place, name] = Case(place.rpartition(".")[2], name, result, message)
    return list(found.values())
