"""The survey of decoders' and single operators' programs: its page and a run's kept results."""

from types import SimpleNamespace

import pytest

import npu_program_survey
from npu_program_survey import main, ops_page, steps_page
from npu_verdicts import Row, Verdicts, survey_into


def verdicts(*broken, left=(), is_rewritten=False, reason=""):
    given = {"4000": reason, "5010": ""}
    return Verdicts(broken, left, is_rewritten, given, given)


WHOLE = Row("llama", "decode", verdicts())
NONE = Row("mamba", "", None, "it has states [static-states]")
CALLS = (
    Row("aten::mm", "f32[2,3] f32[3,2]", verdicts()),
    Row("aten::mm", "f32[0,3] f32[3,2]", verdicts("empty | a", left=("empty | a",), reason="no")),
    Row("aten::nan", "f32[2]", verdicts("IsNaN (opset10)", is_rewritten=True)),
)


def test_the_page_counts_decoders_with_and_without_programs():
    text = steps_page([WHOLE, NONE], "the compiler 1")
    assert "compiled by the compiler 1, which" in text
    assert "Small models of 2 decoders" in text
    assert "prompt. 1 of these have no static" in text
    assert "- Compiler, NPU 5010: 1 programs: 1 accepted\n" in text
    assert "| llama | decode | whole | accepted | accepted |  |\n" in text
    assert text.endswith("| mamba | none | – | – | – | it has states [static-states] |\n")


def test_the_page_counts_a_signature_of_two_entries_once_and_quotes_the_compiler():
    text = ops_page([CALLS[:2], CALLS[1:]], total=600)
    assert "2 of its\n600 entries were called, and reached 2 of the operators" in text
    assert "- Rules: 3 programs: 1 whole, 1 refused, 1 rewritten\n" in text
    assert "- Compiler, NPU 4000: 3 programs: 2 accepted, 1 refused\n" in text
    line = '| aten::mm | 2 | 1 whole, 1 refused | 1 refused, 1 accepted | 2 accepted | empty \\| a; 4000: "no" |\n'  # noqa: E501
    assert line in text


def test_each_half_of_the_page_is_written_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(npu_program_survey, "PAGE", tmp_path / "page.md")
    former, steps = steps_page([WHOLE], "a"), steps_page([NONE], "a")
    calls = ops_page([CALLS], total=1)
    npu_program_survey.write(steps=former)
    npu_program_survey.write(ops=calls)
    assert npu_program_survey.PAGE.read_text() == former + calls
    npu_program_survey.write(steps=steps)
    assert npu_program_survey.PAGE.read_text() == steps + calls


@pytest.fixture
def database(tmp_path, monkeypatch):
    """Three entries, of which the third ends its process."""
    found = {"mm": list(CALLS[:2]), "nan": list(CALLS[2:]), "dead": None}
    called = []

    def in_processes(work, items):
        for name in items:
            called.append(name)
            yield name, found[name], 0.0

    monkeypatch.setattr(npu_program_survey, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(npu_program_survey, "_database", lambda: dict.fromkeys(found))
    monkeypatch.setattr(npu_program_survey, "in_processes", in_processes)
    return SimpleNamespace(called=called, work=lambda items: in_processes(None, items), names=found)


def test_a_run_goes_on_from_the_entries_that_are_kept(database, tmp_path):
    kept = tmp_path / "kept.jsonl"
    first = survey_into(kept, database.names, database.work)
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:2]))
    again = survey_into(kept, database.names, database.work)
    assert again == first == {"mm": list(CALLS[:2]), "nan": [CALLS[2]], "dead": []}
    assert database.called == ["mm", "nan", "dead", "dead"]


def test_no_entry_is_begun_when_time_is_up(database, tmp_path):
    assert main(["ops", str(tmp_path / "kept.jsonl"), "--seconds", "0"]) == 0
    assert database.called == []


def test_a_dead_process_is_reported_and_the_page_is_written(database, tmp_path, capsys):
    assert main(["ops", str(tmp_path / "kept.jsonl")]) == 1
    assert "dead: its process died" in capsys.readouterr().out
    assert "3 of its\n3 entries" in npu_program_survey.PAGE.read_text()
