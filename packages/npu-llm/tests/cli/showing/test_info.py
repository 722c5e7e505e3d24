import json
import re
from pathlib import Path

import pytest

import npu_runtime
from npu_compiler.target_compiler import Estimate, TargetReport
from npu_llm.cli import main
from npu_llm.models.export import export
from tiny_gguf import write_tiny

WITNESS = json.loads((Path(__file__).parents[2] / "gguf/witness.json").read_text())


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
    computed = "bfloat16" if can_half else "float32"
    assert re.search("computes in +(.*)", out)[1].strip() == computed


def test_gguf_file_that_would_not_start_is_refused(tmp_path, capsys):
    described = WITNESS["llama"]
    described["metadata"] |= {
        "tokenizer.ggml.model": [["STRING"], "gpt2"],
        "tokenizer.ggml.pre": [["STRING"], "qwen-9"],
    }
    assert main(["info", str(write_tiny(tmp_path / "some.gguf", described))]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "got 'qwen-9'. Similar names: qwen2" in captured.err
    assert "[gguf-tokenizer]" in captured.err


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
    assert main(["info", str(folder), "--target", "4000"]) == 2
    assert "[model-kind]" in capsys.readouterr().err


REASON = (
    "aten.scaled_dot_product_attention.default (scaled_dot_product_attention, "
    "transformers/models/falcon/modeling_falcon.py:LINE) has a mask with a bias that is not linear "
    "in the distance"
)


def without_line(text):
    return re.sub(r"(modeling_\w+\.py):\d+", r"\1:LINE", " ".join(text.split()))


def test_tracing_tells_the_call_that_keeps_a_model_from_kernels(tmp_path, save_tiny, capsys):
    save_tiny("falcon", tmp_path, alibi=True, max_position_embeddings=768)
    capsys.readouterr()
    assert "--trace finds out" in info(capsys, tmp_path)
    assert f"dynamic: {REASON}" in without_line(info(capsys, tmp_path, "--trace"))
    device = json.loads(info(capsys, tmp_path, "--trace", "--json"))["device"]
    assert (device["pipeline"], device["pipeline_is_known"]) == ("dynamic", True)
    assert without_line(device["why_not_kernels"]) == REASON


def test_indexer_is_told_and_why_its_model_is_no_kernel_program(tmp_path, save_tiny, capsys):
    save_tiny("deepseek_v32", tmp_path / "model")
    out = info(capsys, tmp_path / "model", "--trace")
    words = " ".join(out.split())
    assert "to 16 tokens that an indexer chooses" in words
    assert "dynamic: aten.cat.default" in words
    assert "the cache of all tokens outside of attention" in words


def test_what_the_cache_knows_is_said_without_tracing(tmp_path, save_tiny, capsys, monkeypatch):
    from npu_llm import NPUModelForCausalLM
    from npu_llm.cli.session import _pipeline

    monkeypatch.setenv("NPU_LLM_CACHE_DIR", str(tmp_path / "cache"))
    save_tiny("falcon", tmp_path / "model", alibi=True, max_position_embeddings=768)
    model = NPUModelForCausalLM.from_pretrained(tmp_path / "model", dtype="float32")
    # The table of `generate`.
    assert without_line(_pipeline(model)) == f"dynamic: {REASON}"
    capsys.readouterr()
    assert f"dynamic: {REASON}" in without_line(info(capsys, tmp_path / "model"))


def test_tracing_tells_a_kernel_program(checkpoint, capsys):
    device = json.loads(info(capsys, checkpoint, "--trace", "--json"))["device"]
    assert (device["pipeline"], device["why_not_kernels"]) == ("kernels", None)


def test_target_adds_the_compilers_estimate(checkpoint, capsys, monkeypatch):
    def compile_model(model, target, options):
        estimate = Estimate(2.0, {}, None, None, ())
        return TargetReport(target.number, "fake", True, "", "", None, 0, 1.0, estimate), None

    monkeypatch.setattr("npu_compiler.roofline.time_estimate.compile_if_installed", compile_model)
    estimate = json.loads(info(capsys, checkpoint, "--target", "4000", "--json"))["estimate"]
    assert (estimate["tokens_per_s"], estimate["ttft_s"]) == (500.0, 0.002)
    text = " ".join(info(capsys, checkpoint, "--target", "4000").split())
    assert "500 tokens/s, first token of a prompt of 256 after 2 ms on NPU 4000" in text
    assert "the compiler's estimate, not a measurement" in text


def test_without_a_compiler_an_estimate_says_how_to_have_one(
    checkpoint, capsys, tmp_path, monkeypatch
):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    text = " ".join(info(capsys, checkpoint, "--target", "4000").split())
    assert "npu-compiler target install`" in text


@pytest.mark.parametrize("name", ["nowhere/model.gguf", "nowhere/folder/x"])
def test_model_that_is_not_there(capsys, name):
    assert main(["info", name]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("npu-llm info: ")
    assert "[model-not-found]" in captured.err
