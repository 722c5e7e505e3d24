"""Output and refusals of `npu-ops new`; tests/test_custom_op.py builds and runs it."""

import compileall
import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from npu_ops.errors import OperatorInputError, OpsError
from npu_ops.scaffold import write_project

PACKAGES = ("npu-runtime", "npu-ops", "npu-compiler")


def test_every_file_is_named_and_filled_in(tmp_path):
    place, files = write_project("my_op", tmp_path / "new")
    there = {file for file in place.rglob("*") if file.is_file()}
    assert there == set(files)
    texts = [file.read_text() for file in files]
    assert any("torch.ops.my_op.my_op" in text for text in texts)
    for text in texts:
        assert "$name" not in text
        assert "$wheel" not in text


def test_python_in_it_is_python(tmp_path):
    place, _ = write_project("my_op", tmp_path / "new")
    assert compileall.compile_dir(place, quiet=1)


def test_cmake_keeps_its_own_variables(tmp_path):
    place, _ = write_project("my_op", tmp_path / "new")
    text = (place / "CMakeLists.txt").read_text()
    assert "${SKBUILD_PROJECT_VERSION}" in text
    assert "$ORIGIN/../npu_runtime/lib" in text


def test_cmake_finds_npu_runtime_wherever_python_does(tmp_path):
    """A layered environment has it in a folder that CMake does not search."""
    place, _ = write_project("my_op", tmp_path / "new")
    layer = tmp_path / "layer" / "npu_runtime"
    (layer / "cmake").mkdir(parents=True)
    (layer / "__init__.py").touch()
    config = layer / "cmake" / "npu_runtimeConfig.cmake"
    config.write_text("message(FATAL_ERROR)")
    version = "set(PACKAGE_VERSION 0.1)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n"
    (layer / "cmake" / "npu_runtimeConfigVersion.cmake").write_text(version)
    configured = subprocess.run(
        ["cmake", "-S", place, "-B", tmp_path / "build", "-DSKBUILD_PROJECT_VERSION=0.1.0",
         f"-DPython_EXECUTABLE={sys.executable}"],
        env=os.environ | {"PYTHONPATH": str(layer.parent)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"CMake Error at {config}" in configured.stderr


def test_it_needs_the_versions_that_are_there(tmp_path):
    place, _ = write_project("my_op", tmp_path / "new")
    settings = tomllib.loads((place / "pyproject.toml").read_text())
    project = settings["project"]
    assert project["name"] == "my-op"
    listed = [
        *settings["build-system"]["requires"],
        *project["dependencies"],
        *project["optional-dependencies"]["test"],
    ]
    needed = [Requirement(line) for line in listed]
    for package in (*PACKAGES, "torch"):
        ranges = [item.specifier for item in needed if item.name == package]
        assert ranges
        for specifier in ranges:
            assert specifier.contains(importlib.metadata.version(package))


def test_without_a_directory_it_is_called_as_the_op(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place, _ = write_project("my_op")
    assert place == Path("my_op")
    assert (tmp_path / "my_op" / "csrc" / "my_op.cpp").is_file()


def test_an_empty_directory_is_filled(tmp_path):
    assert write_project("my_op", tmp_path)[0] == tmp_path


def test_a_directory_with_something_in_it_stays_as_it_is(tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(OperatorInputError, match="must be new or empty") as error:
        write_project("my_op", tmp_path)
    assert error.value.code == "directory-taken"
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_a_file_or_dangling_link_in_its_place_stays_as_it_is(tmp_path):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(OperatorInputError) as error:
            write_project("my_op", tmp_path / name)
        assert error.value.code == "directory-taken"
    assert (tmp_path / "file").read_text() == "precious"


def test_a_directory_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OpsError, match="Not a directory") as error:
        write_project("my_op", tmp_path / "file" / "new")
    assert error.value.code == "directory-unwritable"


@pytest.mark.parametrize(
    "name, why",
    [
        ("", "must consist of a-z"),
        ("My_op", "must consist of a-z"),
        ("my-op", "must consist of a-z"),
        ("2nd", "must consist of a-z"),
        ("my_op_", "must consist of a-z"),
        ("_my_op", "must consist of a-z"),
        ("opé", "must consist of a-z"),
        ("../op", "must consist of a-z"),
        ("lambda", "a Python keyword"),
        ("match", "a Python keyword"),
        ("json", "an installed Python package"),
        ("torch", "an installed Python package"),
        ("aten", "a namespace of torch.ops"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(tmp_path, name, why):
    with pytest.raises(OperatorInputError, match=why) as error:
        write_project(name, tmp_path / "new")
    assert error.value.code == "op-name"
    assert repr(name) in str(error.value)
    assert not (tmp_path / "new").exists()
