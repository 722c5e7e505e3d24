"""The sampler against torch's argmax, and against sorting the whole row in float64."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_ops.kernel_programs.sampler import argmax, sample

SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 1.0, -3.4e38, 3.4e38]


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, 3),
    width=st.sampled_from([1, 2, 7, 16, 63, 64, 65, 130, 1000]),
    seed=st.integers(0, 2**31),
    share=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)
def test_argmax_equals_torch_with_ties_nan_and_infinities(rows, width, seed, share):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, generator=generator)
    drawn = torch.randint(len(SPECIAL), (rows, width), generator=generator)
    is_special = torch.rand(rows, width, generator=generator) < share
    logits = torch.where(is_special, torch.tensor(SPECIAL)[drawn], logits)
    assert torch.equal(argmax(logits), logits.argmax(-1))


def test_argmax_takes_views_other_types_and_no_rows():
    logits = torch.randn(4, 300)
    assert torch.equal(argmax(logits[::2, 7:]), logits[::2, 7:].argmax(-1))
    assert torch.equal(argmax(logits.bfloat16()), logits.bfloat16().argmax(-1))
    assert torch.equal(argmax(logits[0]), logits[0].argmax(-1))
    assert argmax(torch.randn(0, 5)).shape == (0,)


def test_argmax_reads_nothing_behind_a_row():
    logits = torch.zeros(1, 128)
    logits[0, 100:] = 9.0
    assert argmax(logits[:, :100]).tolist() == [0]


def test_argmax_of_no_logits_is_torchs_error():
    with pytest.raises(IndexError):
        argmax(torch.zeros(2, 0))


@dataclass(frozen=True)
class Params:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


KINDS = (
    {"top_p": 0.9},
    {"top_p": 0.6, "temperature": 0.7},
    {"top_k": 7, "top_p": 0.8},
    {"min_p": 0.05},
    {"min_p": 0.02, "top_p": 0.97, "temperature": 1.6},
    {"top_k": 5000},
    {},
)


def plainly(scores, how, point):
    """The same for one row, by sorting all of it in float64."""
    shares = torch.softmax(scores.double() / how.temperature, -1)
    if not how.top_k and how.top_p == 1.0 and not how.min_p:
        return int((shares.cumsum(-1) <= point).sum())
    shares, places = torch.sort(shares, descending=True, stable=True)
    if how.top_k:
        shares = shares[: how.top_k] / shares[: how.top_k].sum()
    kept = (shares.cumsum(-1) - shares < how.top_p) & (shares >= how.min_p * shares[0])
    sums = shares[kept].cumsum(-1)
    return int(places[int((sums <= point * sums[-1]).sum())])


@pytest.mark.parametrize("peak", [0.1, 2.0, 6.0])  # flat: all are needed; pointed: a few
def test_rows_together_draw_what_sorting_all_draws(peak):
    torch.manual_seed(7)
    samplings = [Params(**kind) for kind in KINDS]
    for _ in range(6):
        scores = torch.randn(len(KINDS), 3001) * peak
        points = torch.rand(len(KINDS), dtype=torch.float64).tolist()
        wanted = [plainly(*each) for each in zip(scores, samplings, points, strict=True)]
        assert sample(scores, samplings, points) == wanted
        alone = [
            sample(scores[row : row + 1], [how], [points[row]])[0]
            for row, how in enumerate(samplings)
        ]
        assert alone == wanted


def test_ends_of_the_line_have_shares():
    scores = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf]])
    for kind in ({}, {"top_p": 0.99}, {"min_p": 0.01}):
        ends = [sample(scores, [Params(**kind)], [point])[0] for point in (0.0, 1 - 2**-53)]
        assert set(ends) == {1, 3}


def test_what_cannot_be_drawn_is_told_and_others_are_drawn():
    scores = torch.tensor([[0.0, math.nan], [-math.inf, -math.inf], [math.inf, 0.0], [0.0, 50.0]])
    found = sample(scores, [Params(top_p=0.9)] * 4, [0.5] * 4)
    assert found == [None, None, None, 1]


def test_scores_are_not_changed():
    scores = torch.tensor([[0.5, -1.0, 2.0]])
    before = scores.clone()
    sample(scores, [Params(temperature=0.3)], [0.2])
    assert torch.equal(scores, before)


def test_a_temperature_near_zero_draws_the_likeliest():
    scores = torch.tensor([[1.0, 1.001, -2.0]])
    assert sample(scores, [Params(temperature=1e-45)], [0.999]) == [1]


def test_frequencies_are_the_shares():
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(1, 700, generator=generator).repeat(4000, 1) * 2
    points = torch.rand(4000, generator=generator, dtype=torch.float64).tolist()
    found = torch.tensor(sample(scores, [Params()] * 4000, points))
    counts = torch.bincount(found, minlength=700) / 4000
    assert (counts - scores[0].softmax(-1)).abs().max() < 0.03


def test_rows_and_draws_must_be_as_many():
    with pytest.raises(ValueError, match="as many rows"):
        sample(torch.zeros(2, 5), [Params()], [0.5])
