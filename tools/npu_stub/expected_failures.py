"""Pytest plugin: tests listed in expected.toml must fail; a pass is a failure."""

from __future__ import annotations

import fnmatch
import os
import tomllib
from pathlib import Path

import pytest

EXPECTED = Path(__file__).with_name("expected.toml")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks listed tests as expected failures, with reasons; a pass is then a failure."""
    judged = "NPU_STUB_COMPILER" in os.environ
    for pattern, reason in patterns(is_judged=judged).items():
        for item in items:
            if fnmatch.fnmatchcase(item.nodeid, pattern):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def patterns(*, is_judged: bool) -> dict[str, str]:
    """Returns the reason of each listed pattern of test ids, in which [ is literal.

    Args:
        is_judged: whether Intel's compiler judges the programs: some tests fail only then.
    """
    reasons = tomllib.loads(EXPECTED.read_text())["reason"]
    return {
        test.replace("[", "[[]"): entry["why"]
        for entry in reasons
        if is_judged or not entry.get("with_compiler", False)
        for test in entry["tests"]
    }
