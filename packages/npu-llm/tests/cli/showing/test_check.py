import json

import pytest

from npu_llm.cli import main


def check(capsys, *arguments):
    code = main(["check", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_both_static_programs_of_a_model_are_compared_with_the_rules(checkpoint, capsys):
    code, out, _ = check(capsys, checkpoint, "--json")
    assert code == 0
    decode, prefill = json.loads(out)
    assert ", decode of 1 in " in decode["name"]
    assert ", prefill of 128 in " in prefill["name"]
    for program in (decode, prefill):
        verdicts = {finding["rule"]: finding["verdict"] for finding in program["findings"]}
        assert verdicts["static shapes"] == verdicts["operation types"] == "accepted"
        assert program["is_ready"]


@pytest.mark.parametrize("generation", ["4711"])
def test_unknown_generation_is_named(checkpoint, capsys, generation):
    code, out, err = check(capsys, checkpoint, "--generation", generation)
    assert (code, out) == (2, "")
    assert "got '4711'" in err
    assert "[option-value]" in err
