"""arg_max: the same as torch's, whatever the row holds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_ops.kernel_programs.choosing import arg_max

SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 1.0, -3.4e38, 3.4e38]


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, 3),
    width=st.sampled_from([1, 2, 7, 16, 63, 64, 65, 130, 1000]),
    seed=st.integers(0, 2**31),
    share=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)
def test_equals_torch_with_ties_nan_and_infinities(rows, width, seed, share):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, generator=generator)
    drawn = torch.randint(len(SPECIAL), (rows, width), generator=generator)
    is_special = torch.rand(rows, width, generator=generator) < share
    logits = torch.where(is_special, torch.tensor(SPECIAL)[drawn], logits)
    assert torch.equal(arg_max(logits), logits.argmax(-1))


def test_takes_views_other_types_and_no_rows():
    logits = torch.randn(4, 300)
    assert torch.equal(arg_max(logits[::2, 7:]), logits[::2, 7:].argmax(-1))
    assert torch.equal(arg_max(logits.bfloat16()), logits.bfloat16().argmax(-1))
    assert torch.equal(arg_max(logits[0]), logits[0].argmax(-1))
    assert arg_max(torch.randn(0, 5)).shape == (0,)


def test_reads_nothing_behind_a_row():
    logits = torch.zeros(1, 128)
    logits[0, 100:] = 9.0
    assert arg_max(logits[:, :100]).tolist() == [0]


def test_no_logits_are_torchs_error():
    with pytest.raises(IndexError):
        arg_max(torch.zeros(2, 0))
