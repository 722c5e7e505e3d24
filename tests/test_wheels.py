"""The five wheels' metadata: for pip, and for a type checker."""

import importlib.metadata
import importlib.util
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

PACKAGES = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")
# Imports run one way; a dependency against this order would be one that pip has to resolve twice.
MAY_NEED = {
    "npu-runtime": set(),
    "npu-ops": {"npu-runtime"},
    "npu-compiler": {"npu-runtime", "npu-ops"},
    "npu-llm": {"npu-runtime", "npu-ops", "npu-compiler"},
    "npu-profiler": {"npu-runtime"},
}


def requirements(package: str) -> dict[str, Requirement]:
    lines = importlib.metadata.requires(package) or []
    parsed = [Requirement(line) for line in lines]
    return {item.name: item for item in parsed if item.marker is None}


@pytest.mark.parametrize("package", PACKAGES)
def test_version_is_the_one_in_the_source(root, package):
    project = tomllib.loads((root / "packages" / package / "pyproject.toml").read_text())["project"]
    assert importlib.metadata.version(package) == project["version"]


@pytest.mark.parametrize("package", PACKAGES)
def test_siblings_are_needed_by_range_and_one_way(package):
    siblings = {name: item for name, item in requirements(package).items() if name in PACKAGES}
    assert set(siblings) <= MAY_NEED[package]
    for name, item in siblings.items():
        operators = {part.operator for part in item.specifier}
        assert operators == {">=", "<"}, f"{package} needs {item}"
        assert item.specifier.contains(importlib.metadata.version(name))
        assert not item.specifier.contains("1.0"), f"{package} needs {item}"


@pytest.mark.parametrize("package", ["npu-runtime", "npu-ops", "npu-compiler", "npu-llm"])
def test_torch_is_pinned_to_one_minor(package):
    specifier = requirements(package)["torch"].specifier
    assert [specifier.contains(Version(text)) for text in ("2.12.1", "2.13.0", "2.14.0")] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("package", ["npu-runtime", "npu-ops"])
def test_native_wheels_are_built_against_the_torch_they_accept(root, package):
    project = tomllib.loads((root / "packages" / package / "pyproject.toml").read_text())
    assert "torch==2.13.*" in project["build-system"]["requires"]


@pytest.mark.parametrize("package", PACKAGES)
def test_licence_and_types_are_in_the_wheel(package):
    assert importlib.metadata.metadata(package)["License-Expression"] == "Apache-2.0"
    spec = importlib.util.find_spec(package.replace("-", "_"))
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").is_file()
    files = importlib.metadata.files(package) or []
    assert any(file.name == "LICENSE" for file in files)


def test_client_of_the_npu_compiler_is_built_with_the_wheel():
    spec = importlib.util.find_spec("npu_compiler.target_compiler")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).with_name("vcl_client.exe").read_bytes()
    assert program.startswith(b"MZ")
    assert len(program) < 1 << 16  # of a C library it needs nothing


def test_entry_points_are_the_ones_torch_looks_for():
    found = {
        (point.group, point.name)
        for group in ("torch.backends", "torch_dynamo_backends")
        for point in importlib.metadata.entry_points(group=group)
    }
    assert {("torch.backends", "npu"), ("torch_dynamo_backends", "npu")} <= found
