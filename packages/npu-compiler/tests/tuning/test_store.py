"""Tuning records: on disk, and on their way to another machine."""

from __future__ import annotations

import json

import pytest

from npu_compiler.cli import main
from npu_compiler.errors import TuningError
from npu_compiler.tuning.store import TuningRecord, TuningStore

RECORD = TuningRecord(
    key="abc123",
    chosen="no snippets",
    times_us={"default": 20.0, "no snippets": 10.0},
    errors={"default": 0.0, "no snippets": 0.0},
    refused={"bfloat16": "error 1e-2"},
    device="a processor",
    openvino="2026.4.1",
)


def test_records_travel_as_one_file(tmp_path):
    here, there = TuningStore(tmp_path / "here"), TuningStore(tmp_path / "there")
    here.write(RECORD)
    assert here.export(tmp_path / "records.json") == 1
    assert there.import_(tmp_path / "records.json") == 1
    assert there.read("abc123") == RECORD
    assert RECORD.speedup == 2.0


def test_commands_export_and_import(tmp_path, monkeypatch, capsys):
    file = str(tmp_path / "records.json")
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path / "here"))
    TuningStore().write(RECORD)
    assert main(["tune", "--export", file]) == 0
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path / "there"))
    assert main(["tune", "--import", file]) == 0
    assert main(["tune"]) == 0
    assert "no snippets, 2.00x the default" in capsys.readouterr().out


def test_command_tunes_a_script(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8).eval()\n"
        "with torch.no_grad():\n"
        "    torch.compile(model, backend='npu')(torch.ones(2, 8))\n"
    )
    assert main(["tune", "--budget", "0.1", str(script)]) == 0
    assert "1 graphs tuned, 0 not" in capsys.readouterr().out
    assert len(TuningStore().records()) == 1


@pytest.mark.parametrize(
    "text", ["", "{}", '{"format": 99, "records": []}', '{"format": 1, "records": [{}]}']
)
def test_file_of_another_kind_is_an_error_and_nothing_is_taken(tmp_path, text):
    (tmp_path / "records.json").write_text(text)
    store = TuningStore(tmp_path / "store")
    with pytest.raises(TuningError) as caught:
        store.import_(tmp_path / "records.json")
    assert caught.value.code == "tuning-file"
    assert store.records() == ()


def test_file_that_is_absent_is_an_error(tmp_path):
    with pytest.raises(TuningError, match="No such file"):
        TuningStore(tmp_path).import_(tmp_path / "none.json")


def test_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(TuningError):
        TuningStore(tmp_path).export(tmp_path / "no" / "records.json")


def test_record_whose_choice_was_not_measured_is_refused(tmp_path):
    content = {"format": 1, "records": [{**vars(RECORD), "chosen": "bfloat16"}]}
    (tmp_path / "records.json").write_text(json.dumps(content))
    with pytest.raises(TuningError):
        TuningStore(tmp_path).import_(tmp_path / "records.json")
