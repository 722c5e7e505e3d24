import math

import pytest
import torch

from npu_llm.engine.sampler import Sampler, sample
from npu_llm.engine.sampling_params import SamplingParams


def sampler(prompt=(1,), **params):
    return Sampler(SamplingParams(**params), prompt)


def chosen(one, logits):
    """The next token of one answer alone."""
    (token,) = sample([one], logits[None])
    return token


def drawn(logits, count, **sampling):
    """The number of draws of each token."""
    one = sampler(seed=5, **sampling)
    counts = [0] * len(logits)
    for _ in range(count):
        counts[chosen(one, logits).id] += 1
    return counts


def test_draws_have_the_shares_of_the_softmax():
    logits = torch.tensor([0.0, -1.5, 1.0, -torch.inf, 0.3])
    counts = drawn(logits, 4000, temperature=0.7)
    shares = torch.softmax(logits / 0.7, -1).tolist()
    assert [count / 4000 for count in counts] == pytest.approx(shares, abs=0.03)
    assert counts[3] == 0


@pytest.mark.parametrize(
    "sampling, expected",
    [
        ({"top_k": 2}, {2, 4}),
        ({"top_p": 0.6}, {2, 4}),  # the first has 0.53 of it
        ({"top_p": 0.4}, {2}),
        ({"min_p": 0.3}, {0, 2, 4}),
        ({"top_k": 3, "top_p": 0.55}, {2}),  # of the three, the first has 0.56
        ({"min_p": 0.9}, {2}),
    ],
)
def test_settings_bound_what_is_drawn(sampling, expected):
    logits = torch.tensor([0.0, -1.5, 1.0, -3.0, 0.1])
    counts = drawn(logits, 400, **sampling)
    assert {token for token, count in enumerate(counts) if count} == expected


def test_a_share_that_needs_more_than_the_first_tokens_is_whole():
    logits = torch.zeros(1000)  # all equal: 0.9 of them are more than the first candidates
    counts = drawn(logits, 3000, top_p=0.9)
    assert 800 < sum(count > 0 for count in counts) <= 900


def test_penalties_lower_what_the_answer_has():
    logits = torch.tensor([2.0, 1.9, 0.0])
    one = sampler(temperature=0.0, frequency_penalty=0.15)
    assert [chosen(one, logits).id for _ in range(4)] == [0, 1, 0, 1]
    one = sampler(temperature=0.0, presence_penalty=1.95)
    assert [chosen(one, logits).id for _ in range(3)] == [0, 1, 0]
    one = sampler(prompt=(0,), temperature=0.0, repetition_penalty=2.0)
    assert chosen(one, logits).id == 1
    assert logits.tolist() == pytest.approx([2.0, 1.9, 0.0])


def test_a_bias_forbids_and_forces():
    logits = torch.tensor([2.0, 1.9, 0.0])
    assert chosen(sampler(temperature=0.0, logit_bias={0: -100.0}), logits).id == 1
    assert chosen(sampler(temperature=1.0, logit_bias={2: 100.0}), logits).id == 2


def test_logarithms_are_those_before_the_settings():
    one = sampler(logprobs=2, temperature=0.0, logit_bias={0: -100.0})
    token = chosen(one, torch.tensor([0.0, 0.0]))
    assert (token.id, token.logprob) == (1, pytest.approx(-math.log(2)))
    assert {place for place, _ in token.top} == {0, 1}


def test_a_choice_that_fails_leaves_the_others_theirs():
    class Broken:
        is_over = False

        def mask(self, logits):
            raise ValueError("planted")

        def advance(self, token):
            raise AssertionError("nothing was chosen")

    one = Sampler(SamplingParams(), (1,), Broken())
    greedy, random, silent = sampler(temperature=0.0), sampler(seed=3), sampler(seed=3)
    logits = torch.tensor([[0.0, 1.0], [3.0, 1.0], [-30.0, 30.0], [math.nan, 0.0]])
    failed, *told, nan = sample([one, greedy, random, silent], logits)
    assert str(failed) == "planted"
    assert [token.id for token in told] == [0, 1]
    assert isinstance(nan, ArithmeticError)
