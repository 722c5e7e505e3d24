import json
import re

import pytest

import npu_runtime
from npu_llm.cli import main
from npu_llm.entries.exported import export


def info(capsys, *arguments):
    code = main(["info", *map(str, arguments)])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return captured.out


def test_gguf_file_is_described_without_being_loaded(weights, capsys):
    out = info(capsys, weights)
    for words in ("llama", "134.5 million", "30, 576 wide", "9 of 64, 3 of keys", "49,152 tokens"):
        assert words in out
    for precision in ("float32", "bfloat16", "float16", "int8", "int4"):
        assert re.search(rf"{precision}\W+\d+\.\d\d\W", out)
    assert "GB are available" in out
    can_half = "BF16" in npu_runtime.device_info().capabilities
    assert ("bfloat16" in re.search("computes in(.*)", out)[1]) == can_half


def test_checkpoint_as_json(checkpoint, capsys):
    said = json.loads(info(capsys, checkpoint, "--json"))
    assert said["kind"] == "transformers checkpoint"
    assert said["facts"]["layers"] == 2
    assert said["device"]["device"]
    rows = {row["precision"]: row for row in said["memory"]["precisions"]}
    assert rows["float32"]["weights_bytes"] == 4 * said["facts"]["parameters"]
    assert rows["int4"]["weights_bytes"] < rows["int8"]["weights_bytes"]
    assert list(rows["int8"]["total_bytes"]) == ["256"]


def test_exported_folder_has_its_one_precision(checkpoint, tmp_path, capsys):
    folder = export(checkpoint, tmp_path / "out", dtype="int8")
    capsys.readouterr()
    said = json.loads(info(capsys, folder, "--json"))
    assert said["kind"] == "exported folder, int8"
    assert [row["precision"] for row in said["memory"]["precisions"]] == ["int8"]


@pytest.mark.parametrize("name", ["nowhere/model.gguf", "nowhere/folder/x"])
def test_model_that_is_not_there(capsys, name):
    assert main(["info", name]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("npu-llm info: ")
    assert "[model-not-found]" in captured.err
