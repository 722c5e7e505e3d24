"""Tests mirror sources: who knows where a module is knows where its tests are."""

import ast
from pathlib import Path

import pytest

PACKAGES = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")


def files_of_tests(package: Path) -> list[Path]:
    """The files of tests, relative to their folder."""
    tests = package / "tests"
    return sorted(file.relative_to(tests) for file in tests.rglob("test_*.py"))


def places(package: Path) -> dict[str, set[Path]]:
    """For each name of a module or a folder, the possible folders of its tests."""
    found: dict[str, set[Path]] = {}
    for source in (package / "src").iterdir():
        for file in source.rglob("*.py"):
            place = file.relative_to(source)
            if place.name == "__init__.py":  # a folder as a whole: next to it, or in it
                place = place.parent
                found.setdefault(place.name, set()).add(place)
            found.setdefault(place.stem, set()).add(place.parent)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_of_tests_is_named_after_one_of_sources(root, package):
    sources = root / "packages" / package / "src"
    folders = {file.parent.relative_to(sources) for file in sources.rglob("*.py")}
    known = {Path(*folder.parts[1:]) for folder in folders}
    tests = {file.parent for file in files_of_tests(root / "packages" / package)}
    assert tests - known == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_test_with_the_name_of_a_module_stands_where_the_module_does(root, package):
    known = places(root / "packages" / package)
    misplaced = {}
    for file in files_of_tests(root / "packages" / package):
        modules = known.get(file.stem.removeprefix("test_"), set())
        if modules and file.parent not in modules:
            misplaced[str(file)] = sorted(map(str, modules))
    assert misplaced == {}


def test_what_runs_a_second_time_on_the_simulated_device_is_there(root):
    session = ast.parse((root / "noxfile.py").read_text())
    (lists,) = [
        ast.literal_eval(node.value)
        for node in session.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SIMULATED_TESTS"
    ]
    named = [
        root / "packages" / package / "tests" / Path(name).parent / f"test_{Path(name).name}.py"
        for package, names in lists.items()
        for name in names.split()
    ]
    assert named
    assert [str(file) for file in named if not file.is_file()] == []
