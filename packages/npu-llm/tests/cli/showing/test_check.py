import json

import pytest

import npu_llm
from npu_compiler.target_compiler import Estimate, TargetReport
from npu_llm.cli import main


@pytest.fixture(autouse=True, scope="module")
def _without_compiler(tmp_path_factory):
    """Keeps a compiler that the user installed out of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path_factory.mktemp("programs")))
        yield


def check(capsys, *arguments):
    code = main(["check", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_both_static_programs_of_a_model_are_compared_with_the_rules(checkpoint, tmp_path, capsys):
    page = tmp_path / "page.html"
    code, out, err = check(capsys, checkpoint, "--json", "-o", page)
    assert code == 0
    assert "compiling for NPUs: " in err
    decode, prefill = json.loads(out)
    assert decode["name"] in page.read_text()
    assert prefill["name"] in page.read_text()
    assert ", decode of 1 in " in decode["name"]
    assert ", prefill of 256" in prefill["name"]
    for program in (decode, prefill):
        verdicts = {finding["rule"]: finding["verdict"] for finding in program["findings"]}
        assert verdicts["static shapes"] == verdicts["operation types"] == "accepted"
        assert program["is_ready"]


def test_an_exported_folder_is_checked_if_it_is_of_the_static_pipeline(
    checkpoint, tmp_path, capsys
):
    for pipeline in ("static", "dynamic"):
        npu_llm.export(checkpoint, tmp_path / pipeline, pipeline=pipeline, verify="off")
    code, out, _ = check(capsys, tmp_path / "static", "--rules", "--json")
    assert code == 0
    assert [", decode of 1 in " in one["name"] for one in json.loads(out)] == [True, False]
    code, _, error = check(capsys, tmp_path / "dynamic", "--rules")
    assert code == 2
    assert "[exported-pipeline]" in error


def test_programs_of_a_model_with_states_are_compared_and_bounded(save_tiny, tmp_path, capsys):
    save_tiny("mamba", tmp_path / "mamba")
    code, out, _ = check(capsys, tmp_path / "mamba", "--json")
    assert code == 0
    decode, prefill = json.loads(out)
    assert decode["name"].endswith(", decode of 1")
    assert prefill["name"].endswith(", prefill of 16")
    assert decode["is_ready"]
    assert prefill["is_ready"]
    code, out, _ = check(capsys, tmp_path / "mamba", "--estimate", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["prompt_tokens"] == 16
    prefill, decode = (found[step]["bound"] for step in ("prefill", "decode"))
    assert prefill["array_seconds"] > decode["array_seconds"] > 0


def test_estimate_bounds_decoding_and_the_first_token(checkpoint, capsys):
    code, out, _ = check(capsys, checkpoint, "--estimate", "--json")
    assert code == 0
    found = json.loads(out)
    decode, prefill = found["decode"], found["prefill"]
    assert found["most_tokens_per_s"] == pytest.approx(1 / decode["bound"]["least_seconds"])
    assert found["least_ttft_s"] == prefill["bound"]["least_seconds"]
    assert found["prompt_tokens"] == 256
    # Both read every weight once, and separate small constants.
    decode, prefill = decode["bound"], prefill["bound"]
    read, as_much = (one["traffic"]["weight_bytes"] for one in (decode, prefill))
    assert 0 < read == pytest.approx(as_much, rel=0.05)
    assert prefill["array_seconds"] > 10 * decode["array_seconds"]
    _, text, _ = check(capsys, checkpoint, "--estimate")
    assert "tokens/s" in text
    assert "bounds, not measurements" in text


def test_estimates_of_both_programs_become_speeds(checkpoint, capsys, monkeypatch):
    def compile_model(model, target, options):
        # On this NPU a step of one token runs on two tiles.
        estimate = Estimate(2.0 if "NPU_TILES" in options else 50.0, {}, None, None, ())
        return TargetReport(target.number, "fake", True, "", "", None, 0, 1.0, estimate), None

    monkeypatch.setattr("npu_compiler.roofline.time_estimate.compile_if_installed", compile_model)
    command = (checkpoint, "--estimate", "--target", "panther-lake")
    code, out, _ = check(capsys, *command, "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["tokens_per_s"], found["ttft_s"]) == (500.0, 0.05)
    assert (found["most_tokens_per_s"], found["least_ttft_s"]) == (None, None)
    _, text, _ = check(capsys, *command)
    assert "500 tokens/s" in text
    assert text.rstrip().endswith("the compiler's estimate, not a measurement")


def test_unknown_target_is_named(checkpoint, capsys):
    code, out, err = check(capsys, checkpoint, "--target", "4711")
    assert (code, out) == (2, "")
    assert "got '4711'" in err
    assert "[unknown-target]" in err
