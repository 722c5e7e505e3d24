"""`npu-ops run` and `npu-ops replay`: programs unchanged, exit codes, reports, captures."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from npu_ops.cli import main
from npu_ops.debugging.capture_folders import find_captures
from npu_ops.debugging.capture_format import load_capture, save_capture

SCRIPT = """
import sys
import torch

if __name__ == "__main__":
    x = torch.linspace(0, 1, 8).to("npu").requires_grad_()
    (x.exp() * 2).sum().backward()
    print("arguments", sys.argv[1:])
"""


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_a_script_runs_unchanged_and_all_tools_report(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = ["--autocompare", "--capture", "--time", "--overflow", "--observe", "2"]
    assert main(["run", *tools, "-o", "out", script, "one", "--two"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "arguments ['one', '--two']\n"
    assert "calls compared, 0 differ" in shown.err
    for name in ("autocompare", "capture", "time", "overflow", "observe"):
        assert (tmp_path / "out" / f"{name}.html").read_text().startswith("<!doctype html>")
    compared = rows(tmp_path / "out" / "autocompare.csv")
    assert {row["verdict"] for row in compared} == {"close"}
    assert {row["phase"] for row in compared} == {"forward", "backward"}


def test_a_module_runs_as_a_module(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--time", "--ops", "exp", "-m", "program", "--flag"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "arguments ['--flag']\n"
    assert "aten.exp.default" in shown.err
    assert "aten.mul" not in shown.err


def test_a_difference_is_the_exit_code_and_a_capture_that_replays(
    script: str, tmp_path: Path, plant: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("exp", lambda x: (x.cpu().exp() + 1).to("npu"))
    assert main(["run", "--autocompare", "-o", "out", script]) == 1
    assert "1 differ; the first is aten.exp.default(float32[8])" in capsys.readouterr().err
    (folder,) = (tmp_path / "out" / "differences").iterdir()
    assert main(["replay", str(folder), "--acc-check"]) == 1
    assert "differs" in capsys.readouterr().out
    assert main(["replay", str(folder), "--device", "cpu", "--acc-check"]) == 1
    shown = capsys.readouterr().out
    assert "1 calls made again on cpu, 0 with the recorded values, 1 differ" in shown


def test_fallback_takes_a_faulty_op_out_of_the_run(script: str, plant: Any) -> None:
    plant("exp", lambda x: (x.cpu().exp() + 1).to("npu"))
    assert main(["run", "--autocompare", "--fallback", "--ops", "exp", script]) == 0


def test_the_programs_own_exit_code_wins(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, code in (("raise SystemExit(3)", 3), ("raise ValueError('no')", 1), ("exit()", 0)):
        (tmp_path / "program.py").write_text(line)
        assert main(["run", "--observe", "1", script]) == code
    assert "ValueError: no" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, says",
    [
        (["--time"], "a script, or -m and a module, must follow"),
        (["--capture", "program.py"], "--capture needs -o DIR"),
        (["--cast", "float", "-x", "program.py"], "unknown option -x"),
    ],
    ids=["nothing", "no-directory", "unknown"],
)
def test_a_wrong_call_is_explained(
    script: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", *words])
    assert end.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, code",
    [
        (["absent.py"], "script-missing"),
        (["x" * 300], "script-missing"),
        (["."], "script-missing"),
        (["-m", "absent"], "module-missing"),
        (["-m", "absent.inner"], "module-missing"),
        (["-m", "program.py"], "module-missing"),
        (["-m", "json"], "module-missing"),
    ],
    ids=lambda value: value[-1][:10] if isinstance(value, list) else None,
)
def test_a_program_that_python_cannot_run_is_told_in_a_sentence(
    script: str, words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--time", *words]) == 2
    shown = capsys.readouterr().err
    assert f"got {words[-1]}" in shown
    assert shown.endswith(f"[{code}]\n")
    assert "Traceback" not in shown


@pytest.mark.parametrize("line", ["import absent", "import runpy; runpy.run_module('absent')"])
def test_an_import_that_fails_in_the_program_is_the_programs(
    line: str, script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.py").write_text(line)
    for words in ([script], ["-m", "program"]):
        assert main(["run", "--time", *words]) == 1
        assert "ModuleNotFoundError" in (shown := capsys.readouterr().err) or "ImportError" in shown
        assert "Traceback" in shown


def test_a_cast_to_what_is_no_dtype_is_an_error(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--cast", "float99", script]) == 2
    assert "[tool-option]" in capsys.readouterr().err


def test_replay_times_and_filters(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--capture", "-o", "out", script]) == 0
    words = ["--run-times", "3", "--only-forward", "--sync-time", "--op", "exp", "--op", "mul"]
    written = ["--csv", "r.csv", "--html", "r.html"]
    assert main(["replay", "out/captures", *words, *written]) == 0
    found = rows(tmp_path / "r.csv")
    assert [row["folder"].split("-")[1] for row in found] == ["aten.exp.default", "aten.mul.Tensor"]
    assert all(row["runs"] == "3" and float(row["min ms"]) > 0 for row in found)
    assert {row["recorded"] for row in found} == {""}
    assert "2 calls made again on npu." in capsys.readouterr().out


def test_an_op_that_nobody_defines_cannot_be_replayed(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--capture", "--ops", "exp", "-o", "out", script]) == 0
    (folder,) = find_captures(tmp_path)
    save_capture(replace(load_capture(folder), op="absent.op.default"), tmp_path / "changed")
    assert main(["replay", "changed"]) == 2
    assert "[unknown-op]" in capsys.readouterr().err


def test_a_damaged_capture_is_no_difference(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--capture", "--ops", "exp", "-o", "out", script]) == 0
    (file,) = tmp_path.rglob("tensors.safetensors")
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert main(["replay", "out", "--acc-check"]) == 2
    assert "[file-damaged]" in capsys.readouterr().err


def test_replay_leaves_the_random_stream_as_it_was(script: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import torch; torch.rand(4, device='npu')")
    assert main(["run", "--capture", "-o", "out", script]) == 0
    torch.npu.manual_seed(9)
    expected = torch.rand(4, device="npu")
    torch.npu.manual_seed(9)
    assert main(["replay", "out", "--acc-check"]) == 0
    assert torch.equal(torch.rand(4, device="npu"), expected)
