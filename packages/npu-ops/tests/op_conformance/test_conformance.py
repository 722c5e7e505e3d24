import csv
import json
import sys
from xml.etree import ElementTree

import pytest

import forked_python
from npu_ops.cli import main
from npu_ops.op_conformance.cell import Outcome
from npu_ops.op_conformance.running.supervision import run_tasks
from npu_ops.seal import digest, read_sealed, seal

pytestmark = pytest.mark.usefixtures("forked_children")


def conformance(*arguments):
    return main(["conformance", "--jobs=1", *arguments])


def rows_of(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_cases_are_run_and_written(tmp_path, capsys):
    file = tmp_path / "cells.csv"
    selected = ("--op", "tril", "--dtype", "float32", "--layout", "contiguous")
    assert conformance(*selected, "--report=csv", "-o", str(file)) == 0
    assert "1 of 1 ops are right throughout" in capsys.readouterr().out
    rows = rows_of(file)
    assert {row["check"] for row in rows} == {"forward", "backward", "in-place"}
    assert {row["outcome"] for row in rows} == {"passed"}


def test_torchs_databases_are_a_suite_of_the_same_command(tmp_path):
    file = tmp_path / "cells.csv"
    selected = ("--suite", "torch", "--op", "addmm_decomposed", "SGD", "--samples=1")
    assert conformance(*selected, "--report=csv", "-o", str(file)) == 0
    checks = {row["check"] for row in rows_of(file) if row["outcome"] == "passed"}
    assert checks >= {"forward", "backward", "foreach"}


def test_a_listing_names_cases_and_runs_nothing(capsys):
    assert conformance("--op", "tril", "--dtype", "float32", "--list") == 0
    ids = capsys.readouterr().out.split()
    assert len(ids) > 5
    assert all(one.startswith("tril:float32:") for one in ids)


def test_one_case_is_run_by_its_id(capsys):
    conformance("--op", "tril", "--dtype", "float32", "--list")
    first = capsys.readouterr().out.split()[0]
    assert conformance("--case", first) == 0
    assert "0 of 3 cells failed" in capsys.readouterr().out


def test_a_network_by_name_selects_the_calls_that_it_makes(capsys):
    assert conformance("--model", "gpt2", "--op", "addmm", "--list") == 0
    assert capsys.readouterr().out.startswith("aten.addmm.default:float32:recorded:")


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--suite", "nonsense"], "invalid choice: 'nonsense'"),
        (["--dtype", "float33"], "must be names such as float32, got 'float33'"),
        (["--layout", "sideways"], "must be one of contiguous"),
        (["--suite", "torch", "--device", "cpu"], "given with a suite of cases"),
        (["-o", "file"], "given with --report"),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as end:
        conformance(*arguments)
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_filters_that_leave_nothing_are_an_error(capsys):
    assert conformance("--op", "nonsense") == 2
    assert "[conformance-empty]" in capsys.readouterr().err


def test_a_failure_comes_with_its_command_in_every_report(tmp_path, capsys):
    # Results of another machine that are not this one's: a baseline of cpu, with one value changed.
    from safetensors.torch import load_file, save_file

    place, page, junit = tmp_path / "base", tmp_path / "page.html", tmp_path / "junit.xml"
    selected = ("--op", "tril", "--dtype", "float32", "--layout", "strided")
    assert conformance(*selected, "--save-baseline", str(place)) == 0
    file = place / "tril.safetensors"
    tensors = load_file(file)
    name = next(n for n in tensors if n.endswith("/forward/result0") and tensors[n].numel())
    tensors[name].view(-1)[0] += 1
    save_file(tensors, file)
    index, _ = read_sealed(place / "baseline.json")
    sealed = seal(index, index["files"] | {file.name: digest(file.read_bytes())})
    (place / "baseline.json").write_text(json.dumps(sealed))
    case = name.split("/")[0]
    against = ("--device", "cpu", "--baseline", str(place))
    assert conformance(*selected, *against, "--report=html", "-o", str(page)) == 1
    command = f"npu-ops conformance --case {case} --device cpu --baseline {place}"
    assert command in capsys.readouterr().out
    assert command in page.read_text()
    assert "1 of" not in page.read_text().split("Networks")[1]
    assert conformance(*selected, *against, "--report=junit", "-o", str(junit)) == 1
    (failure,) = ElementTree.parse(junit).iter("failure")
    assert command in failure.text


def test_the_module_is_the_command():
    command = (sys.executable, "-m", "npu_ops.op_conformance", "--list", "--op", "tril")
    done = forked_python.run(command)
    assert done.returncode == 0, done.stderr
    assert "tril:float32:contiguous:" in done.stdout


def tasks(*indices):
    return [
        {
            "suite": "torch",
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
    run_tasks(tasks(0), jobs=1, timeout_s=0.01, environment={}, on_cells=cells.extend)
    assert [cell.outcome for cell in cells] == [Outcome.TIMEOUT]
