import json

import pytest

from npu_llm.cli import main


def check(capsys, *arguments):
    code = main(["check", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_both_static_programs_of_a_model_are_compared_with_the_rules(checkpoint, tmp_path, capsys):
    page = tmp_path / "page.html"
    code, out, _ = check(capsys, checkpoint, "--json", "-o", page)
    assert code == 0
    decode, prefill = json.loads(out)
    assert decode["name"] in page.read_text()
    assert prefill["name"] in page.read_text()
    assert ", decode of 1 in " in decode["name"]
    assert ", prefill of 128 in " in prefill["name"]
    for program in (decode, prefill):
        verdicts = {finding["rule"]: finding["verdict"] for finding in program["findings"]}
        assert verdicts["static shapes"] == verdicts["operation types"] == "accepted"
        assert program["is_ready"]


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
    assert found["prefill"]["array_seconds"] > found["decode"]["array_seconds"] > 0


def test_estimate_bounds_decoding_and_the_first_token(checkpoint, capsys):
    code, out, _ = check(capsys, checkpoint, "--estimate", "--json")
    assert code == 0
    found = json.loads(out)
    decode, prefill = found["decode"], found["prefill"]
    assert found["most_tokens_per_s"] == pytest.approx(1 / decode["least_seconds"])
    assert found["least_ttft_s"] == prefill["least_seconds"]
    assert found["prompt_tokens"] == 128
    # Both read every weight once, but for rows of the embedding.
    assert 0 < decode["traffic"]["weight_bytes"] < prefill["traffic"]["weight_bytes"]
    assert prefill["array_seconds"] > 10 * decode["array_seconds"]
    _, text, _ = check(capsys, checkpoint, "--estimate")
    assert "tokens/s" in text
    assert "bounds, not measurements" in text


@pytest.mark.parametrize("generation", ["4711"])
def test_unknown_generation_is_named(checkpoint, capsys, generation):
    code, out, err = check(capsys, checkpoint, "--generation", generation)
    assert (code, out) == (2, "")
    assert "got '4711'" in err
    assert "[option-value]" in err
