"""Sources of the compiler: their order, their versions, and missing parts."""

from __future__ import annotations

import shutil

import pytest

from npu_compiler.errors import TargetError
from npu_compiler.target_compiler import sources as module
from npu_compiler.target_compiler.sources import find_source, list_sources, wine_command


def put(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"library")
    return file


def test_order_is_the_users_library_then_the_systems_then_the_newest_release(
    home, tmp_path, monkeypatch
):
    for release in ("2026.9.0", "2026.10.1"):
        put(home / "target" / "intel" / release / "openvino_intel_npu_compiler.dll")
    put(tmp_path / "system" / "libnpu_driver_compiler.so")
    put(tmp_path / "archive" / "libopenvino_intel_npu_compiler_loader.so")
    monkeypatch.setattr(module, "_FOLDERS", (str(tmp_path / "system"),))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "archive"))
    monkeypatch.setenv("NPU_TARGET_COMPILER", str(put(tmp_path / "mine.so")))
    found = list(list_sources())
    assert [one.kind for one in found] == ["setting", "driver", "openvino", "wine", "wine"]
    assert [one.release for one in found] == ["", "", "", "2026.10.1", "2026.9.0"]
    assert find_source() == found[0]
    assert find_source("2026.9.0") == found[4]


def test_without_a_compiler_the_error_has_the_command(home):
    with pytest.raises(TargetError, match="npu-compiler target install`") as error:
        find_source()
    assert error.value.code == "target-absent"
    with pytest.raises(TargetError, match=r"npu-compiler target install 2026\.3\.0`"):
        find_source("2026.3.0")


@pytest.mark.parametrize("path", ["/nowhere", "/" + 300 * "n"])
def test_library_that_is_not_there_is_an_error(home, monkeypatch, path):
    monkeypatch.setenv("NPU_TARGET_COMPILER", path)
    with pytest.raises(TargetError, match=f"`NPU_TARGET_COMPILER` .*'{path}'") as error:
        find_source()
    assert error.value.code == "target-compiler"


def test_version_is_kept_until_the_library_changes(installed, fake_library, tmp_path, monkeypatch):
    copy = shutil.copy(fake_library, tmp_path / "copy.so")
    monkeypatch.setenv("NPU_TARGET_COMPILER", str(copy))
    source = find_source()
    assert source.version() == "fake-1"
    monkeypatch.setenv("FAKE_START", "fails")
    assert source.version() == "fake-1"
    shutil.copy(fake_library, copy).touch()
    with pytest.raises(TargetError, match="vclCompilerCreate failed: 0x3"):
        source.version()


def test_wine_that_is_missing_is_named_with_the_command(monkeypatch):
    monkeypatch.setattr(module, "_WINE", ("/nowhere/wine64",))
    with pytest.raises(TargetError, match="apt-get install wine64") as error:
        wine_command()
    assert error.value.code == "target-wine"


def test_first_start_that_fails_leaves_no_folder_of_wine(home, tmp_path, monkeypatch):
    broken = tmp_path / "wine"
    broken.write_text('#!/bin/sh\nmkdir "$WINEPREFIX"\necho broken >&2\nexit 3\n')
    broken.chmod(0o755)
    monkeypatch.setattr(module, "_WINE", (str(broken),))
    put(home / "target" / "intel" / "2026.4.1" / "openvino_intel_npu_compiler.dll")
    with pytest.raises(TargetError, match="exit code 3 broken"):
        find_source().version()
    assert not (home / "target" / "wine").exists()
