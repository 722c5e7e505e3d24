"""The page of versions matches the wheels' requirements."""

import re
import tomllib

import pytest

WHEELS = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")


@pytest.fixture(scope="module")
def asked(root):
    """(wheel, library) -> the range that the wheel asks for."""
    found = {}
    for wheel in WHEELS:
        project = tomllib.loads((root / f"packages/{wheel}/pyproject.toml").read_text())["project"]
        found[wheel, "Python"] = project["requires-python"]
        for line in project["dependencies"]:
            name, bounds = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?(.*)", line).groups()
            found[wheel, name] = bounds
    return found


def test_ranges_on_the_page_are_those_of_the_wheels(root, asked):
    text = (root / "docs/compatibility.md").read_text()
    rows = re.findall(
        r"^\| ([\w-]+) \| (.*) \|$", text.partition("## With systems")[0], re.MULTILINE
    )
    header, *rows = [(name, cells.split(" | ")) for name, cells in rows]
    assert header == ("Library", list(WHEELS))
    assert {name for name, _ in rows} >= {"Python", "torch", "openvino", "transformers", "numpy"}
    for name, cells in rows:
        assert cells == [asked.get((wheel, name), "–") for wheel in WHEELS], name
