import math

import pytest
import torch

from npu_llm.errors import OptionError
from npu_llm.evaluation import EvaluationResult, default_text, evaluate, read_text


def tokenize(text):
    """Each word's letters decide its token."""
    return [sum(map(ord, word)) % 97 for word in text.split()]


@pytest.fixture
def model(llama, encode_by):
    made = llama.ours()
    encode_by(made, tokenize)
    return made


def test_perplexity_is_that_of_transformers(model, llama):
    text = "the quick brown fox jumps over the lazy dog " * 5
    got = evaluate(model, text, window=16)
    ids = torch.tensor(tokenize(text))
    losses = []
    scored = 0
    with torch.no_grad():
        for start in [*range(0, len(ids) - 16, 16), len(ids) - 16]:
            part = ids[start : start + 16]
            logits = llama.reference(part[None]).logits[0].log_softmax(-1)
            first = max(scored - start, 1)
            losses += [-logits[i - 1, part[i]].item() for i in range(first, 16)]
            scored = start + 16
    assert got.perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)
    assert (got.precision, got.tokens, got.stride) == ("float32", len(ids), 16)


@pytest.mark.parametrize("scored_from", [None, 4])
def test_the_listener_hears_how_much_of_the_text_is_read(model, scored_from):
    heard = []
    evaluate(
        model, "the quick brown fox " * 11, window=16, scored_from=scored_from,
        on_tokens=lambda done, total: heard.append((done, total)),
    )  # fmt: skip
    done, totals = zip(*heard, strict=True)
    assert len(heard) >= 3
    assert list(done) == sorted(done)
    assert {done[-1]} == set(totals)


def test_loss_is_relative():
    exact = EvaluationResult("float32", 20.0, 100, 10, 10)
    assert EvaluationResult("int8", 21.0, 100, 10, 10).loss(exact) == pytest.approx(0.05)


@pytest.mark.parametrize(
    "text, options, quoted",
    [
        ("the", {}, "window 256"),
        ("the quick fox " * 99, {"window": 1}, "window 1"),
        ("the quick fox " * 99, {"window": 8, "stride": 9}, "stride 9"),
        ("the quick fox " * 999, {"window": 300}, "context of 128"),
    ],
)
def test_text_and_window_that_do_not_fit_are_errors(model, text, options, quoted):
    with pytest.raises(OptionError) as caught:
        evaluate(model, text, **options)
    assert caught.value.code == "eval-text"
    assert quoted in str(caught.value)


def test_file_that_is_no_text_is_an_error(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x80")
    for file, reason in {"binary": "UTF-8", "absent": "No such file"}.items():
        with pytest.raises(OptionError) as caught:
            read_text(tmp_path / file)
        assert caught.value.code == "eval-text"
        assert reason in str(caught.value)


def test_text_that_comes_along_is_long_enough_for_several_windows():
    assert 2000 < len(default_text().split()) < 3000
