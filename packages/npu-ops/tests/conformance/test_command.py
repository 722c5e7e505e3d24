import csv
import subprocess
import sys

from npu_ops.conformance.cell import Outcome
from npu_ops.conformance.supervision import run_tasks

COMMAND = (sys.executable, "-m", "npu_ops.conformance")


def run(*arguments):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def test_the_command_prints_a_table_and_writes_all_cells(tmp_path):
    file = tmp_path / "cells.csv"
    done = run("ops", "--filter=addmm_decomposed", "--samples=1", "--jobs=1", f"--csv={file}")
    assert done.returncode == 0, done.stderr
    assert "forward         float32           1 of       1   100.00%" in done.stdout
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert {row["check"] for row in rows if row["outcome"] == "passed"} >= {"forward", "backward"}


def test_modules_and_optimizers_are_compared():
    done = run("modules", "optimizers", "--filter=SGD", "--samples=1", "--jobs=1")
    assert done.returncode == 0, done.stdout
    assert "foreach" in done.stdout


def test_wrong_arguments_get_one_sentence():
    for arguments, sentence in (
        (["nonsense"], "expected one of ops, modules, optimizers; got 'nonsense'"),
        (["--dtypes", "float33"], "expected names such as float32; got 'float33'"),
        (["ops", "--filter", "nonsense"], "no entry of the databases is left"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert sentence in done.stderr


def tasks(*indices):
    return [
        {
            "database": "ops",
            "index": index,
            "subject": f"op {index}",
            "dtype": "float32",
            "most_samples": 1,
            "checks": ["forward"],
        }
        for index in indices
    ]


def test_a_task_that_ends_its_process_costs_that_task_alone():
    cells = []
    run_tasks(tasks(-1_000_000, 0), jobs=1, timeout_s=120, environment={}, on_cells=cells.extend)
    assert [cell.outcome for cell in cells] == [Outcome.FAILED, Outcome.PASSED]
    assert cells[0].detail == "the process ended with status 1"


def test_a_task_that_takes_too_long_is_ended():
    cells = []
    run_tasks(tasks(0), jobs=1, timeout_s=0.1, environment={}, on_cells=cells.extend)
    assert [cell.outcome for cell in cells] == [Outcome.TIMEOUT]
