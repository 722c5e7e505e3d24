import json

import pytest


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("the quick brown fox jumps over the lazy dog " * 8)
    return ("--text", str(file), "--window", "16")


def test_precisions_stand_side_by_side(in_process, text, tmp_path):
    file = tmp_path / "eval.json"
    code, out, err = in_process("eval", "--dtype", "int8", *text, "--json", str(file))
    assert code == 0, err
    exact, small = json.loads(file.read_text())
    for one in (exact, small):
        read = -(-one["tokens"] // one["window"]) * one["window"]
        assert f"measuring {one['precision']}: {read:,} tokens in " in err
    assert (exact["precision"], small["precision"]) == ("float32", "int8")
    assert exact["loss"] == 0
    for said in (
        f"{exact['perplexity']:.3f}",
        f"{small['perplexity']:.3f}",
        f"{small['loss']:+.2%}",
    ):
        assert said in out


def test_cache_in_8_bits_stands_beside_the_exact_one(in_process, text, tmp_path):
    file = tmp_path / "eval.json"
    chosen = ("--dtype", "float32", "--kv-cache", "u8", "--json", str(file))
    code, out, err = in_process("eval", *chosen, *text)
    assert code == 0, err
    assert "float32, kv-cache u8" in out
    exact, small = json.loads(file.read_text())
    assert (exact["kv_cache"], small["kv_cache"]) == (None, "u8")


def test_text_of_the_package_serves_where_none_is_given(in_process):
    code, out, err = in_process("eval", "--dtype", "float32", "--compare", "none")
    assert code == 0, err
    assert "float32" in out
    assert "loss" not in out


def test_loss_above_the_limit_ends_with_1(in_process, text):
    arguments = ("eval", "--dtype", "int8", *text, "--max-loss")
    assert in_process(*arguments, "1000")[0] == 0
    assert in_process(*arguments, "-1000")[0] == 1


def test_limit_without_a_comparison_is_an_error(in_process, text):
    code, out, err = in_process("eval", "--compare", "none", "--max-loss", "1", *text)
    assert (code, out) == (2, "")
    assert "[eval-compare]" in err
