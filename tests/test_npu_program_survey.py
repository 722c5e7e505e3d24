"""The survey of decoders' and single operators' programs: verdicts, its page, what a run keeps."""

from types import SimpleNamespace

import openvino as ov
import openvino.opset15 as ops
import pytest

import npu_program_survey
from npu_program_survey import Row, judge, main, ops_page, steps_page, survey_ops

WHOLE = Row("llama", "decode", ("whole", "whole"), ())
NONE = Row("mamba", "", (), ("it has states [static-states]",))
CALLS = (
    Row("aten::mm", "f32[2,3] f32[3,2]", ("whole", "whole"), ()),
    Row("aten::mm", "f32[0,3] f32[3,2]", ("refused", "refused"), ("empty | a",), ("empty | a",)),
    Row("aten::nan", "f32[2]", ("rewritten", "rewritten"), ("IsNaN (opset10)",)),
)


def model_of(make) -> ov.Model:
    x = ops.parameter([2, 3], ov.Type.f32)
    return ov.Model([make(x)], [x], "one")


def test_a_program_without_refusal_is_whole():
    row = judge("aten::relu", "f32[2,3]", model_of(ops.relu))
    assert row == Row("aten::relu", "f32[2,3]", ("whole", "whole"), ())


def test_a_refused_operation_with_an_equal_form_is_rewritten():
    row = judge("aten::isnan", "f32[2,3]", model_of(ops.is_nan))
    assert row.verdicts == ("rewritten", "rewritten")
    assert "IsNaN" in row.reasons[0]
    assert row.left == ()


def test_a_refused_operation_without_one_names_its_rule_twice():
    row = judge("aten::searchsorted", "f32[2,3]", model_of(lambda x: ops.search_sorted(x, x)))
    assert row.verdicts == ("refused", "refused")
    assert "SearchSorted" in row.reasons[0]
    assert row.left == row.reasons


def test_the_page_counts_decoders_with_and_without_programs():
    text = steps_page([WHOLE, NONE])
    assert "Small models of 2 decoders" in text
    assert "prompt. 1 of these have no static" in text
    assert "- NPU 4000: 1 programs: 1 whole\n" in text
    assert text.endswith("| mamba | none | – | – | it has states [static-states] |\n")


def test_the_page_counts_a_signature_of_two_entries_once_and_refusals_by_rule():
    text = ops_page([CALLS[:2], CALLS[1:]], total=600)
    assert "2 of its\n600 entries were called, and reached 2 of the operators" in text
    assert "- NPU 3720: 3 programs: 1 whole, 1 rewritten, 1 refused\n" in text
    assert "\n- empty | a: 1 of the programs\n" in text
    assert "| aten::mm | 2 | 1 whole, 1 refused | 1 whole, 1 refused | empty \\| a |\n" in text


def test_each_half_of_the_page_is_written_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(npu_program_survey, "PAGE", tmp_path / "page.md")
    former, steps, calls = steps_page([WHOLE]), steps_page([NONE]), ops_page([CALLS], total=1)
    npu_program_survey.write(steps=former)
    npu_program_survey.write(ops=calls)
    assert npu_program_survey.PAGE.read_text() == former + calls
    npu_program_survey.write(steps=steps)
    assert npu_program_survey.PAGE.read_text() == steps + calls


@pytest.fixture
def database(tmp_path, monkeypatch):
    """Three entries, of which the third ends its process."""
    entries = [SimpleNamespace(formatted_name=name) for name in ("mm", "nan", "dead")]
    found = [list(CALLS[:2]), list(CALLS[2:]), None]
    called = []

    def in_processes(work, items):
        for index in items:
            called.append(index)
            yield index, found[index], 0.0

    monkeypatch.setattr(npu_program_survey, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(npu_program_survey, "_database", lambda: entries)
    monkeypatch.setattr(npu_program_survey, "in_processes", in_processes)
    return called


def test_a_run_goes_on_from_the_entries_that_are_kept(database, tmp_path):
    kept = tmp_path / "kept.jsonl"
    first = survey_ops(kept, 1000)
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:2]))
    assert survey_ops(kept, 1000) == first == {"mm": list(CALLS[:2]), "nan": [CALLS[2]], "dead": []}
    assert database == [0, 1, 2, 2]


def test_no_entry_is_begun_when_time_is_up(database, tmp_path):
    assert survey_ops(tmp_path / "kept.jsonl", 0) == {}
    assert database == []


def test_a_dead_process_is_told_and_the_page_is_written(database, tmp_path, capsys):
    assert main(["--ops", str(tmp_path / "kept.jsonl")]) == 1
    assert "dead: its process died" in capsys.readouterr().out
    assert "3 of its\n3 entries" in npu_program_survey.PAGE.read_text()


def test_a_long_reason_is_cut_between_words(monkeypatch, capsys):
    found = Row("llama", "", (), ("nothing " * 40,))
    monkeypatch.setattr(npu_program_survey, "in_processes", lambda *_: [("llama", [found], 0.0)])
    assert main(["--only", "llama"]) == 0
    assert "nothing …'" in capsys.readouterr().out
