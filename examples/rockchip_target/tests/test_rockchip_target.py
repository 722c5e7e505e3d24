"""The wheel with a toolkit that crashes, hangs and refuses on request, in place of Rockchip's."""

from __future__ import annotations

import io
import json
import shutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.cli import main
from npu_compiler.errors import TargetError
from npu_compiler.target_compiler import GraphProgram, find_target, targets
from npu_compiler.target_compiler.vcl_process import Limits
from npu_runtime import ProgramError
from npu_target_rockchip import compiler, environment
from npu_target_rockchip.toolkit import Toolkit

FAKE = Path(__file__).with_name("fake_rknn.py")
TARGET = compiler.RockchipCompiler.targets[0]
_PYTHON = """#!/bin/sh
shift  # -I
exec "{python}" -c 'import runpy, sys
sys.path.insert(0, "{packages}")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")' "$@"
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An environment with the fake toolkit; the entry point of this wheel."""
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path / "cache"))
    folder = environment.home() / environment.LATEST
    packages = folder / "lib/python3/site-packages"
    for place in (folder / "bin", packages / "rknn"):
        place.mkdir(parents=True)
    shutil.copy(FAKE, packages / "rknn/api.py")
    python = folder / "bin/python"
    python.write_text(_PYTHON.format(python=sys.executable, packages=packages))
    python.chmod(0o755)
    (folder / "installed.json").write_text(json.dumps({"release": environment.LATEST}))
    entry = EntryPoint("rockchip", "npu_target_rockchip:RockchipCompiler", targets.GROUP)
    monkeypatch.setattr(targets, "entry_points", lambda *, group: [entry])
    targets.vendors.cache_clear()
    forget = compiler._toolkit.cache_clear
    forget()
    yield folder
    targets.vendors.cache_clear()
    forget()


def _compile(does, monkeypatch):
    """Compiles a graph of one call; its ONNX file has a text that the fake reads."""
    monkeypatch.setattr(compiler, "write_onnx", lambda program, path: path.write_text(does))
    module = make_fx(lambda x: (x * 2,), tracing_mode="fake")(torch.ones(2, 3))
    program = GraphProgram(name="net", module=module, constants={})
    return compiler.RockchipCompiler().compile(program, TARGET)


def test_a_program_is_accepted_runs_and_is_kept(monkeypatch):
    made = _compile("fine", monkeypatch)
    assert made.report.is_accepted
    assert made.report.blob.read_bytes() == b"RKNN"
    x = torch.randn(2, 3)
    assert torch.equal(made.run([x])[0], 2 * x)
    toolkit = compiler._toolkit()
    toolkit.close()
    again = _compile("fine", monkeypatch)
    assert (again.report, toolkit.starts) == (made.report, 1)  # nothing was compiled
    assert torch.equal(again.run([x])[0], 2 * x)  # built again, in another process
    assert toolkit.starts == 2


@pytest.mark.parametrize(
    "does, reason",
    [
        ("refuse", "build: build: Unsupported CPU op: Foo in this NPU!"),
        ("crash", "rknn-toolkit2: the process ended with signal 6"),
        ("lose", "inference: the results must have [6] elements, got shapes []"),
    ],
)
def test_a_refusal_and_a_crash_are_reports(does, reason, monkeypatch):
    made = _compile(does, monkeypatch)
    assert (made.report.is_accepted, made.report.reason, made.run) == (False, reason, None)
    assert _compile("fine", monkeypatch).report.is_accepted


def test_a_hang_ends_at_its_limit_and_is_not_kept(monkeypatch):
    toolkit = Toolkit(Limits(duration_s=1.0))
    monkeypatch.setattr(compiler, "_toolkit", lambda: toolkit)
    reason = "rknn-toolkit2: the process took longer than 1 s, and was ended"
    assert _compile("hang", monkeypatch).report.reason == reason
    assert list(compiler.KeptFiles().entries()) == []


def test_a_crash_of_the_simulator_is_an_error(monkeypatch):
    made = _compile("crash later", monkeypatch)
    with pytest.raises(ProgramError, match="signal 6") as error:
        made.run([torch.ones(2, 3)])
    assert error.value.code == "target-run"


def test_weights_beyond_32_bit_addresses_are_an_error():
    module = make_fx(lambda x, w: (x * 2,), tracing_mode="fake")(torch.ones(2), torch.ones(2))
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    weight = torch.empty(1 << 31, dtype=torch.float16, device="meta")
    program = GraphProgram(name="net", module=module, constants={names[1]: weight})
    with pytest.raises(TargetError, match=r"4\.3 GB in float16") as error:
        compiler.RockchipCompiler().compile(program, TARGET)
    assert error.value.code == "target-size"


def _without_toolkit(folder):
    shutil.rmtree(folder)


def _another_release(folder):
    (folder / "installed.json").write_text(json.dumps({"release": "1.0.0"}))


def _without_python(folder):
    (folder / "bin/python").unlink()


def _without_packages(folder):
    shutil.rmtree(folder / "lib")


def _broken(folder):
    (folder / "bin/python").write_text("#!/bin/sh\nexit 3\n")


@pytest.mark.parametrize(
    "spoil, code, words",
    [
        (_without_toolkit, "target-absent", "found none"),
        (_another_release, "target-absent", "found 1.0.0"),
        (_without_python, "target-compiler", "no bin/python"),
        (_without_packages, "target-compiler", "no lib/.*/rknn"),
        (_broken, "target-compiler", "ended with code 3"),
    ],
)
def test_an_environment_that_is_not_there_or_broken_is_an_error(
    spoil, code, words, home, monkeypatch
):
    spoil(home)
    with pytest.raises(TargetError, match=words) as error:
        _compile("fine", monkeypatch)
    assert error.value.code == code


def test_the_command_lists_and_removes_an_environment(home, capsys):
    assert main(["target", "list", "--json"]) == 0
    (source,) = json.loads(capsys.readouterr().out)["vendors"]["rockchip"]["sources"]
    assert (source["release"], source["version"]) == ("2.5.0", "rknn-toolkit2 2.5.0")
    assert main(["target", "remove", "rockchip", "2.4.0"]) == 2
    assert main(["target", "remove", "rockchip", "2.5.0"]) == 0
    assert not home.exists()


@pytest.mark.parametrize(
    "words, code",
    [
        (["2.5.0"], "target-licence"),
        (["2.4.0", "--accept-licence"], "target-release"),
        (["2.5.0", "--accept-licence", "--wheel", "/nowhere.whl"], "target-download"),
    ],
)
def test_an_installation_that_fails_leaves_what_was_there(words, code, home, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["target", "install", "rockchip", *words]) == 2
    assert f"[{code}]" in capsys.readouterr().err
    assert [folder.name for folder in home.parent.iterdir()] == ["2.5.0"]
    assert find_target("RK3588", graphs=True) is TARGET
