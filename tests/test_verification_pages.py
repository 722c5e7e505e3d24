"""Tests that the verification pages name exist."""

import re


def test_named_tests_exist(root):
    for page in sorted((root / "docs/verification").glob("*.md")):
        for file, name in re.findall(r"`([\w/.-]+\.py)::(\w+)`", page.read_text()):
            assert f"def {name}(" in (root / file).read_text(), f"{page.name}: {file}::{name}"
