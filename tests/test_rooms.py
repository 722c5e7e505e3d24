"""The page on architecture has the rooms of each package in the order that imports are held to."""

import re
import tomllib

import pytest

PACKAGES = ["npu_command", "npu_runtime", "npu_ops", "npu_compiler", "npu_llm", "npu_profiler"]


def contracts(root):
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    found = settings["tool"]["importlinter"]["contracts"]
    return {
        contract["containers"][0]: [sorted(layer.split(" | ")) for layer in contract["layers"]]
        for contract in found
        if "containers" in contract
    }


def rooms_on_the_page(root, package):
    page = (root / "docs/contributing/architecture.md").read_text()
    _, table = page.split(f"| `{package}.` |")
    rows = table.split("\n\n")[0].splitlines()[2:]
    return [sorted(re.findall(r"`([^`]+)`", row.split("|")[1])) for row in rows]


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_are_those_that_imports_are_held_to(root, package):
    assert rooms_on_the_page(root, package) == contracts(root)[package]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_module_stands_in_a_room(root, package):
    (source,) = root.glob(f"packages/*/src/{package}")
    modules = {path.stem for path in source.glob("*.py")} - {"__init__"}
    folders = {path.parent.name for path in source.glob("*/__init__.py")}
    assert modules | folders == {room for layer in contracts(root)[package] for room in layer}
