import json

import pytest
import torch

from npu_ops.conformance import Outcome
from npu_ops.conformance.baseline import Baseline, BaselineWriter, checksum, pack
from npu_ops.conformance.cases import Case
from npu_ops.conformance.cases.evaluation import evaluate
from npu_ops.conformance.cases.run import case_cells
from npu_ops.errors import ConformanceError

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


def test_a_baseline_of_other_inputs_is_refused(tmp_path):
    written(tmp_path, CASE)
    file = tmp_path / "baseline.json"
    index = json.loads(file.read_text())
    index["cases"][CASE.id]["inputs"] += 1
    file.write_text(json.dumps(index))
    with pytest.raises(ConformanceError, match="this machine makes others") as error:
        Baseline(tmp_path).expected(CASE, "forward")
    assert error.value.code == "conformance-inputs"


@pytest.mark.parametrize("text", [None, "no json", '{"format": 99}'])
def test_a_directory_without_a_baseline_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "baseline.json").write_text(text)
    with pytest.raises(ConformanceError, match="--save-baseline") as error:
        Baseline(tmp_path)
    assert error.value.code == "conformance-baseline"
