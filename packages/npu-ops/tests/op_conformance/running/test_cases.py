import csv
import dataclasses
import json
import re
import shlex
import warnings
from collections import OrderedDict

import pytest
import torch

from npu_ops.cli import main
from npu_ops.op_conformance import __main__ as command
from npu_ops.op_conformance.cases import Case, interface_cases
from npu_ops.op_conformance.cell import Cell, Outcome
from npu_ops.op_conformance.interface import load_operators
from npu_ops.op_conformance.report import Run, reproducer
from npu_ops.op_conformance.running.cases import case_cells
from npu_ops.op_conformance.running.worker import run_task

pytestmark = pytest.mark.filterwarnings("ignore")  # hundreds of ops warn; none of it is about npu


def sample():
    """The first case of each op that goes through all of its checks."""
    found = OrderedDict()
    for case in interface_cases().values():
        if case.dtype in ("float32", "int64", "bool", "complex64"):
            best = found.setdefault(case.op, case)
            if len(case.checks) > len(best.checks):
                found[case.op] = case
    return list(found.values())


@pytest.mark.parametrize("case", sample(), ids=lambda case: case.id)
def test_npu_equals_the_cpu(case):
    for cell in case_cells(case):
        assert cell.outcome is Outcome.PASSED, cell


def broken(monkeypatch, function):
    """A case of `abs`, with `function` as its kernel on npu."""

    def call(x):
        return function(x) if x.is_npu else torch.abs(x)

    operator = dataclasses.replace(load_operators()["abs"])
    monkeypatch.setitem(operator.__dict__, "function", lambda check="forward": call)
    monkeypatch.setitem(load_operators(), "abs", operator)
    case = Case("interface", "abs", "float32", "contiguous", {"input": "[9]"}, ("forward",))
    return case_cells(case)[0]


@pytest.mark.parametrize(
    "function, detail",
    [
        (lambda x: x, "not close"),
        (lambda x: x.cpu().abs(), "a result is on cpu"),
        (lambda x: x.abs_(), "an argument after the call"),
        (lambda x: x.no_such_thing, "got AttributeError"),
    ],
)
def test_a_wrong_op_fails(monkeypatch, function, detail):
    cell = broken(monkeypatch, function)
    assert cell.outcome is Outcome.FAILED
    assert detail in cell.detail


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
    assert "--captures must be given with a suite of cases" in capsys.readouterr().err
