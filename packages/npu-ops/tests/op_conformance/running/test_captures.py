"""A kernel that is wrong on purpose: its failing case can be made again by `npu-ops replay`."""

import csv
import json
import re
import shlex
import warnings

import pytest
import torch

from npu_ops.cli import main
from npu_ops.op_conformance import __main__ as command
from npu_ops.op_conformance.cell import Cell, Outcome
from npu_ops.op_conformance.report import Run, reproducer
from npu_ops.op_conformance.running.worker import run_task


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs tasks where the wrong kernel is; a child would not have it."""

    def rows_of(task):
        return json.loads(json.dumps(run_task(json.loads(json.dumps(task)))))

    def run_each(tasks, *, on_answer, **_):
        for task in tasks:
            on_answer(task, rows_of(task), None)

    def run_tasks(tasks, *, on_cells, **_):
        for task in tasks:
            rows = rows_of(task)
            on_cells([Cell(**{**row, "outcome": Outcome(row["outcome"])}) for row in rows])

    monkeypatch.setattr(command, "run_each", run_each)
    monkeypatch.setattr(command, "run_tasks", run_tasks)


@pytest.fixture
def wrong_tril():
    """tril on npu, one diagonal too high."""

    def tril(x, diagonal=0):
        return torch.where(x.cpu().tril(diagonal + 1) != 0, x.cpu(), 0).to(x.device)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a kernel already
        library.impl("tril", tril, "PrivateUse1")
    yield
    library._destroy()


SELECTED = ("--op", "tril", "--dtype", "float32", "--layout", "contiguous", "--check", "forward")


def test_failing_case_is_captured_and_its_replay_fails_too(
    in_this_process, wrong_tril, tmp_path, capsys
):
    captures, report = tmp_path / "captures", tmp_path / "cells.csv"
    arguments = ["conformance", *SELECTED, "--captures", str(captures), "--report=csv"]
    assert main([*arguments, "-o", str(report)]) == 1
    printed = capsys.readouterr().out
    with report.open(newline="") as lines:
        failed = {row["case"] for row in csv.DictReader(lines) if row["outcome"] == "failed"}
    commands = [shlex.split(line) for line in re.findall(r"npu-ops replay .+", printed)]
    assert len(commands) == len(failed) > 0
    for _, *again in commands:
        assert main(again) == 1
    assert "aten.tril.default" in capsys.readouterr().out
    ops = {json.loads(file.read_text())["op"] for file in captures.rglob("call.json")}
    assert ops == {"aten.tril.default"}


def test_case_that_passes_leaves_no_capture(in_this_process, tmp_path):
    captures = tmp_path / "captures"
    assert main(["conformance", *SELECTED, "--captures", str(captures)]) == 0
    assert not captures.exists()


def test_failure_without_a_capture_is_shown_again_by_its_case():
    cell = Cell("tril", "float32", "forward", Outcome.FAILED, suite="interface", case="tril:1")
    run = Run("", "cpu", "", 0.0, ("--device", "cpu"))
    assert reproducer(cell, run) == "npu-ops conformance --case tril:1 --device cpu"
    captured = Run("", "cpu", "", 0.0, (), {("tril:1", "forward"): "/tmp/c"})
    assert reproducer(cell, captured) == "npu-ops replay /tmp/c --acc-check --device cpu"


def test_captures_need_a_suite_of_cases(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["conformance", "--suite", "torch", "--captures", "x"])
    assert ended.value.code == 2
    assert "--captures: expected a suite of cases" in capsys.readouterr().err
