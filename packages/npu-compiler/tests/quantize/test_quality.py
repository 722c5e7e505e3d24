"""Perplexity against a formula by hand, output error, and the gate."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from npu_compiler.errors import OptionError, QualityError
from npu_compiler.quantize import (
    QualityReport,
    compare_outputs,
    compare_perplexity,
    perplexity,
)

VOCABULARY = 11


def next_token(scale):
    """A model with logits that prefer the token after the given one, `scale` strongly."""

    def logits(tokens):
        return scale * nn.functional.one_hot((tokens + 1) % VOCABULARY, VOCABULARY).float()

    return logits


def test_perplexity_of_a_model_that_knows_nothing_is_the_vocabulary():
    tokens = torch.randint(0, VOCABULARY, (40,))
    assert perplexity(next_token(0.0), tokens, window=8) == pytest.approx(VOCABULARY)


def test_perplexity_is_exp_of_the_mean_negative_log_likelihood():
    tokens = torch.arange(30) % VOCABULARY
    tokens[7] = 0  # two surprises: the 0 itself, and the token after it
    scale = 2.0
    total = math.exp(scale) + VOCABULARY - 1
    right, wrong = -math.log(math.exp(scale) / total), -math.log(1 / total)
    expected = math.exp((27 * right + 2 * wrong) / 29)
    assert perplexity(next_token(scale), tokens, window=30) == pytest.approx(expected)


@pytest.mark.parametrize("stride", [None, 5, 1])
def test_every_call_gets_one_whole_window(stride):
    calls = []

    def logits(tokens):
        calls.append(tokens)
        return next_token(1.0)(tokens)

    perplexity(logits, torch.arange(30) % VOCABULARY, window=9, stride=stride)
    assert {tuple(call.shape) for call in calls} == {(1, 9)}


def test_last_token_is_scored_though_no_window_ends_there_by_stride():
    tokens = torch.arange(30) % VOCABULARY
    surprising = tokens.clone()
    surprising[-1] = 0
    model = next_token(1.0)
    assert perplexity(model, surprising, window=9) > perplexity(model, tokens, window=9)


@pytest.mark.parametrize("stride", [1, 5, 7])
def test_overlapping_windows_score_each_token_once(stride):
    tokens = torch.arange(30) % VOCABULARY
    tokens[7] = 0
    whole = perplexity(next_token(2.0), tokens, window=30)
    assert perplexity(next_token(2.0), tokens, window=9, stride=stride) == pytest.approx(whole)


def test_context_of_overlapping_windows_is_kept():
    """A model that knows a token only from the one 6 places before it."""

    def logits(tokens):
        values = torch.zeros(1, tokens.shape[1], VOCABULARY)
        for position in range(5, tokens.shape[1]):
            values[0, position, tokens[0, position - 5]] = 50.0
        return values

    tokens = torch.tensor([0, 3, 1, 4, 2, 9] * 6)
    alone = perplexity(logits, tokens, window=12)
    overlapping = perplexity(logits, tokens, window=12, stride=6)
    assert overlapping < alone


def test_logits_may_stand_in_a_dict_or_an_object():
    class Output:
        def __init__(self, logits):
            self.logits = logits

    tokens, model = torch.randint(0, VOCABULARY, (20,)), next_token(1.0)
    expected = perplexity(model, tokens, window=10)
    assert perplexity(lambda x: {"logits": model(x)}, tokens, window=10) == expected
    assert perplexity(lambda x: Output(model(x)), tokens, window=10) == expected
    assert perplexity(lambda x: model(x).numpy(), tokens, window=10) == expected


@pytest.mark.parametrize(
    "tokens, arguments",
    [
        (torch.zeros(5, dtype=torch.int64), {"window": 8}),
        (torch.zeros((1, 8), dtype=torch.int64), {"window": 4}),
        (torch.zeros(8, dtype=torch.int64), {"window": 1}),
        (torch.zeros(8, dtype=torch.int64), {"window": 4, "stride": 5}),
        (torch.zeros(8, dtype=torch.int64), {"window": 4, "stride": 0}),
    ],
    ids=["short", "two rows", "window 1", "gap", "no step"],
)
def test_text_and_windows_that_do_not_fit_are_an_error(tokens, arguments):
    with pytest.raises(OptionError, match="one row of at least one window") as error:
        perplexity(next_token(1.0), tokens, **arguments)
    assert error.value.code == "quality-input"


def test_logits_of_another_shape_are_an_error():
    with pytest.raises(OptionError, match=r"\(1, 4, vocabulary\), got \(1, 4\)") as error:
        perplexity(lambda tokens: tokens.float(), torch.zeros(8, dtype=torch.int64), window=4)
    assert error.value.code == "quality-input"


def test_perplexities_are_compared():
    tokens = torch.arange(40) % VOCABULARY
    report = compare_perplexity(next_token(3.0), next_token(2.0), tokens, window=10, limit=0.01)
    assert report.metric == "perplexity"
    assert report.after > report.before > 1
    assert report.relative == pytest.approx(report.after / report.before - 1)
    assert not report.is_within_limit


def test_output_error_is_that_of_all_results_together():
    inputs = [torch.ones(3), (torch.full((3,), 2.0),), {"x": torch.zeros(3)}]
    report = compare_outputs(lambda x: {"y": x, "n": 3}, lambda x: {"y": 1.1 * x, "n": 3}, inputs)
    assert report.relative == report.after == pytest.approx(0.1, rel=1e-5)
    assert report.before == 0


def test_results_of_different_forms_are_an_error():
    with pytest.raises(OptionError, match=r"got shapes \[\(3,\)\] and \[\(2,\)\]") as error:
        compare_outputs(lambda x: x, lambda x: x[:2], [torch.ones(3)])
    assert error.value.code == "quality-input"


def test_no_inputs_are_an_error():
    with pytest.raises(OptionError, match="got none") as error:
        compare_outputs(lambda x: x, lambda x: x, [])
    assert error.value.code == "quality-input"


def test_gate_lets_through_what_is_within_the_limit():
    report = QualityReport("perplexity", 10.0, 10.05, 0.005, 0.01)
    assert report.check() is report
    assert str(report) == "perplexity: 10 before, 10.05 after (+0.50%, limit 1.00%)"
    assert QualityReport("perplexity", 10.0, 99.0, 8.9).check().is_within_limit


@pytest.mark.parametrize("relative", [0.25, math.nan, math.inf])
def test_gate_stops_what_is_above_the_limit(relative):
    report = QualityReport("output error", 0.0, relative, relative, 0.2)
    with pytest.raises(QualityError, match=r"at most 20\.00%, got") as error:
        report.check()
    assert error.value.code == "quality-gate"
