"""Installing a release, from small wheels with given hashes."""

from __future__ import annotations

import hashlib
import threading
import zipfile

import pytest

from npu_compiler.errors import TargetError
from npu_compiler.target_compiler import install as module
from npu_compiler.target_compiler import sources
from npu_compiler.target_compiler.install import install

RELEASE = "2026.4.1"
COMPILER = "openvino_intel_npu_compiler.dll"


@pytest.fixture(autouse=True)
def _wine(home, monkeypatch):
    monkeypatch.setattr(sources, "_WINE", ("/bin/true",))


@pytest.fixture
def folder(home):
    return home / "target" / "intel" / RELEASE


@pytest.fixture
def make_wheel(tmp_path, monkeypatch):
    def make(**libraries):
        path = tmp_path / "openvino.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, content in {"other": "x", **libraries}.items():
                wheel.writestr(f"openvino/libs/{name}.dll", content)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setitem(module.RELEASES, RELEASE, digest)
        return path

    return make


def test_a_wheels_compiler_is_installed_and_replaces_the_former(make_wheel, folder):
    for content in ("first", "second"):
        source = install(RELEASE, wheel=make_wheel(openvino_intel_npu_compiler=content))
        assert (source.kind, source.release) == ("wine", RELEASE)
        assert source.library == folder / COMPILER
        assert source.library.read_text() == content
    assert [file.name for file in folder.iterdir()] == [COMPILER]


def test_two_installations_at_once_leave_one_whole(make_wheel, folder):
    wheel = make_wheel(openvino_intel_npu_compiler="whole")
    both = [
        threading.Thread(target=install, args=(RELEASE,), kwargs={"wheel": wheel}) for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert (folder / COMPILER).read_text() == "whole"
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize(
    "libraries, digest, code",
    [
        ({"openvino_intel_npu_compiler": "x"}, "0" * 64, "target-hash"),
        ({"openvino": "x"}, None, "target-compiler"),
    ],
)
def test_wrong_wheel_installs_nothing(make_wheel, folder, monkeypatch, libraries, digest, code):
    wheel = make_wheel(**libraries)
    if digest is not None:
        monkeypatch.setitem(module.RELEASES, RELEASE, digest)
    with pytest.raises(TargetError) as error:
        install(RELEASE, wheel=wheel)
    assert error.value.code == code
    assert list(folder.parent.iterdir()) == []


def test_wheel_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(TargetError, match=r"none\.whl") as error:
        install(RELEASE, wheel=tmp_path / "none.whl")
    assert error.value.code == "target-download"


def test_unknown_release_lists_those_that_are_known():
    with pytest.raises(TargetError, match=r"got '2026\.4'\. Did you mean 2026\.4\.\d") as error:
        install("2026.4")
    assert error.value.code == "target-release"


def test_pip_that_fails_is_quoted_with_the_command_for_another_machine(monkeypatch, folder):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(TargetError, match=r"pip download .*openvino==2026\.4\.1") as error:
        install(RELEASE)
    assert error.value.code == "target-download"
    assert list(folder.parent.iterdir()) == []


def test_without_wine_nothing_is_fetched(monkeypatch, home):
    monkeypatch.setattr(sources, "_WINE", ("/nowhere",))
    with pytest.raises(TargetError) as error:
        install(RELEASE)
    assert error.value.code == "target-wine"
    assert not home.exists()


def test_what_a_killed_installation_left_is_removed(make_wheel, folder):
    left = folder.parent / ".left" / "libraries"
    left.mkdir(parents=True)
    install(RELEASE, wheel=make_wheel(openvino_intel_npu_compiler="x"))
    assert list(folder.parent.iterdir()) == [folder]


def test_folder_that_cannot_be_written_is_an_error(make_wheel, home):
    wheel = make_wheel(openvino_intel_npu_compiler="x")
    home.mkdir()
    (home / "target").write_text("a file")
    with pytest.raises(TargetError) as error:
        install(RELEASE, wheel=wheel)
    assert error.value.code == "target-cache"
