"""Reads the report that pytest writes with --junitxml."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Case", "read_cases"]

_UNHAPPY = ("failure", "error")
_FILE = re.compile(r"(?:.*\.)?test_\w+")  # prefix of class names


@dataclass(frozen=True)
class Case:
    """The outcome of a test.

    Attributes:
        owner: class, or file without ".py".
        name: name with parameters.
        result: "passed", "skipped" or "failed".
        message: message of a failure; else "".
        file: dotted, without ".py".
        duration_s: duration of set-up, call and teardown.
        properties: names and values, in order; a name can occur twice.
    """

    owner: str
    name: str
    result: str
    message: str = ""
    file: str = ""
    duration_s: float = 0.0
    properties: tuple[tuple[str, str], ...] = ()


def read_cases(report: Path) -> list[Case]:
    """Returns each test once, in order: it failed if any of its entries did.

    A report can have two entries for a test: itself, and its teardown. Their
    durations and properties are joined.
    """
    found: dict[tuple[str, str], Case] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        place, name = case.get("classname", ""), case.get("name", "")
        known = found.get((place, name), Case("", "", ""))
        result, message = _outcome(case)
        if known.result == "failed" and result != "failed":
            result, message = known.result, known.message
        file = _FILE.match(place)
        found[place, name] = Case(
            owner=place.rpartition(".")[2],
            name=name,
            result=result,
            message=message,
            file=file[0] if file else place,
            duration_s=known.duration_s + float(case.get("time", 0)),
            properties=known.properties + _properties(case),
        )
    return list(found.values())


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    """Returns an entry's result, and the message of a failure."""
    for part in case:
        if part.tag in _UNHAPPY:
            return "failed", part.get("message") or ""
    return ("skipped" if case.find("skipped") is not None else "passed"), ""


def _properties(case: ElementTree.Element) -> tuple[tuple[str, str], ...]:
    """Returns the properties that an entry's test recorded."""
    found = case.iterfind("properties/property")
    return tuple((item.get("name", ""), item.get("value", "")) for item in found)
