import json

import pytest
import torch

from npu_ops.cli import main
from npu_ops.errors import ConformanceError, DamagedFileError, OpsError
from npu_ops.op_conformance import Outcome
from npu_ops.op_conformance.baseline import Baseline, BaselineWriter, checksum, pack
from npu_ops.op_conformance.cases import Case
from npu_ops.op_conformance.cases.judge import evaluate
from npu_ops.op_conformance.running.cases import case_cells

CHECKS = ("forward", "backward", "in-place")
CASE = Case("interface", "tril", "float32", "contiguous", {"input": "[4,5]"}, CHECKS)
COMPLEX = Case("interface", "exp", "complex64", "contiguous", {"input": "[5]"})
NUMBER = Case("interface", "equal", "float32", "contiguous", {"input": "[5]", "other": "[5]"})


def written(place, *cases, budget_bytes=10**6):
    writer = BaselineWriter(place, budget_bytes, {"machine": "here"})
    for case in cases:
        given = list(case.make_arguments().values())
        for check in case.checks:
            packed = pack(evaluate(case, check, "cpu"), given)
            writer.add(case, check, checksum(case), packed)
    writer.write()
    return writer


@pytest.mark.parametrize("case", [CASE, COMPLEX, NUMBER], ids=lambda case: case.op)
def test_results_of_another_machine_are_what_a_device_is_held_against(tmp_path, case):
    written(tmp_path, case)
    cells = case_cells(case, baseline=Baseline(tmp_path))
    assert [cell.outcome for cell in cells] == [Outcome.PASSED] * len(case.checks)


def test_what_was_written_in_place_is_kept_and_what_stayed_is_not(tmp_path):
    written(tmp_path, CASE)
    kept = json.loads((tmp_path / "baseline.json").read_text())["cases"][CASE.id]["checks"]
    assert kept["forward"]["arguments"] == [None]
    assert kept["in-place"]["arguments"] == [{"tensor": "argument0"}]


def test_a_case_past_the_budget_is_left_out_by_name_and_not_counted_as_right(tmp_path):
    size = 4 * 5 * torch.float32.itemsize
    writer = written(tmp_path, CASE, budget_bytes=size)
    assert writer.size_bytes == size
    assert writer.left_out == [f"{CASE.id}/backward", f"{CASE.id}/in-place"]
    outcomes = [cell.outcome for cell in case_cells(CASE, baseline=Baseline(tmp_path))]
    assert outcomes == [Outcome.PASSED, Outcome.EMPTY, Outcome.EMPTY]


def rewritten(place, **changes):
    """The index as an earlier version wrote it, without checksums."""
    index = json.loads((place / "baseline.json").read_text())
    del index["checksum"], index["files"]
    (place / "baseline.json").write_text(json.dumps(index | {"format": 1} | changes))


def test_a_baseline_of_other_inputs_is_refused(tmp_path):
    written(tmp_path, CASE)
    cases = json.loads((tmp_path / "baseline.json").read_text())["cases"]
    cases[CASE.id]["inputs"] += 1
    rewritten(tmp_path, cases=cases)
    with pytest.raises(ConformanceError, match="the baseline's inputs") as error:
        Baseline(tmp_path).expected(CASE, "forward")
    assert error.value.code == "conformance-inputs"


@pytest.mark.parametrize("text", [None, '{"format": 99}', "[]"])
def test_a_directory_without_a_baseline_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "baseline.json").write_text(text)
    with pytest.raises(ConformanceError, match="--save-baseline") as error:
        Baseline(tmp_path)
    assert error.value.code == "conformance-baseline"


@pytest.mark.parametrize("name", ["baseline.json", "tril.safetensors"])
def test_each_flipped_byte_is_a_damaged_file(tmp_path, name):
    written(tmp_path, CASE)
    file = tmp_path / name
    whole = file.read_bytes()
    for place in range(0, len(whole), 11):
        if chr(whole[place]).isspace():  # between the words of JSON, which means nothing
            continue
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedFileError, match=name) as error:
            Baseline(tmp_path).check()
        assert error.value.code == "file-damaged"


@pytest.mark.parametrize("name", ["baseline.json", "tril.safetensors"])
def test_a_truncated_or_absent_file_is_no_failure_of_the_device(tmp_path, name):
    written(tmp_path, CASE)
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedFileError):
        Baseline(tmp_path).expected(CASE, "forward")
    file.unlink()
    with pytest.raises(OpsError) as error:
        Baseline(tmp_path).expected(CASE, "forward")
    assert error.value.code in ("file-damaged", "conformance-baseline")


def test_a_baseline_of_the_first_format_is_read_and_told_apart(tmp_path):
    written(tmp_path, CASE)
    rewritten(tmp_path)
    baseline = Baseline(tmp_path)
    baseline.check()
    assert not baseline.has_checksums
    assert {cell.outcome for cell in case_cells(CASE, baseline=baseline)} == {Outcome.PASSED}


def test_the_command_refuses_a_damaged_baseline_before_it_runs_anything(tmp_path, capsys):
    written(tmp_path, CASE)
    file = tmp_path / "tril.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert main(["conformance", "--baseline", str(tmp_path), "--case", CASE.id]) == 2
    assert "[file-damaged]" in capsys.readouterr().err


def test_the_command_says_that_a_baseline_cannot_show_damage(tmp_path, capsys):
    written(tmp_path, CASE)
    rewritten(tmp_path)
    assert main(["conformance", "--baseline", str(tmp_path), "--op", "tril", "--list"]) == 0
    assert "is of a version without checksums" in capsys.readouterr().out
