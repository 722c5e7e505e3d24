"""The tool that brings Intel's NPU compiler, on machines that are made up."""

import subprocess
from types import SimpleNamespace

import pytest

import target_compiler
from npu_compiler.errors import TargetError


class Machine:
    """The software of a machine, and the results of its package manager and pip."""

    def __init__(self):
        self.has_wine = self.has_release = True
        self.is_root = True
        self.apt = (0, "")
        self.pip_code = None
        self.commands = []

    def wine_command(self):
        if not self.has_wine:
            raise TargetError("no Wine", code="target-wine")
        return "wine64"

    def find_source(self, release):
        if not self.has_release:
            raise TargetError("no release", code="target-absent")
        return SimpleNamespace(version=lambda: f"{release}-1")

    def install(self, release):
        if self.pip_code is not None:
            raise TargetError("not fetched", code=self.pip_code)
        self.has_release = True
        return self.find_source(release)

    def run(self, command, **_):
        self.commands.append(command)
        code, said = self.apt
        self.has_wine = code == 0
        return subprocess.CompletedProcess(command, code, said, "")


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    for name in ("wine_command", "find_source", "install"):
        monkeypatch.setattr(target_compiler, name, getattr(made, name))
    monkeypatch.setattr(target_compiler.subprocess, "run", made.run)
    monkeypatch.setattr(target_compiler.os, "geteuid", lambda: 0 if made.is_root else 1000)
    monkeypatch.setattr(target_compiler.shutil, "which", lambda name: f"/usr/bin/{name}")
    return made


@pytest.fixture
def prepare(machine, tmp_path):
    """Runs the tool; returns its exit code and the reason for which the tests are left out."""
    reason = tmp_path / "junit" / "suite.txt"

    def call(*flags):
        code = target_compiler.main([str(reason), *flags])
        return code, reason.read_text() if reason.exists() else None

    return call


def test_machine_that_has_all_is_ready(machine, prepare, capsys):
    assert prepare() == (0, None)
    assert capsys.readouterr().out.startswith("compiler: 20")
    assert machine.commands == []


@pytest.mark.parametrize("missing", ["has_wine", "has_release"])
def test_nothing_is_installed_without_leave(machine, prepare, missing):
    setattr(machine, missing, False)
    code, reason = prepare()
    assert code == 0
    assert "is not installed. As root, `apt-get install" in reason
    assert machine.commands == []


def test_root_installs_wine_without_recommended_packages(machine, prepare):
    machine.has_wine = False
    assert prepare("--install") == (0, None)
    assert [command[0] for command in machine.commands] == ["apt-get"] * 2
    assert machine.commands[1][-3:] == ["--yes", "--no-install-recommends", "wine64"]


def test_user_who_is_not_root_is_told(machine, prepare):
    machine.has_wine = machine.is_root = False
    code, reason = prepare("--install")
    assert code == 0
    assert "needs root" in reason


@pytest.mark.parametrize("said", ["E: Failed to fetch x", "E: Unable to locate package wine64"])
def test_mirror_that_cannot_be_reached_is_a_reason(machine, prepare, said):
    machine.has_wine, machine.apt = False, (100, said)
    code, reason = prepare("--install")
    assert code == 0
    assert reason.startswith("Debian's mirror cannot be reached")


def test_apt_that_fails_otherwise_is_a_failure(machine, prepare, capsys):
    machine.has_wine, machine.apt = False, (100, "E: dpkg was interrupted")
    assert prepare("--install") == (1, None)
    assert "[target-wine]" in capsys.readouterr().err


def test_index_that_cannot_be_reached_is_a_reason_and_a_wrong_wheel_a_failure(machine, prepare):
    machine.has_release, machine.pip_code = False, "target-download"
    assert prepare("--install")[1].startswith("not fetched")
    machine.pip_code = "target-hash"
    assert prepare("--install") == (1, None)
