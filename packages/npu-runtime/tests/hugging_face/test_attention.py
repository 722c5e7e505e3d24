"""Flash attention's calls against attention written out."""

import math

import pytest
import torch

from npu_runtime.errors import InputError
from npu_runtime.hugging_face.attention import flash_attn_func, flash_attn_varlen_func


def written_out(q, k, v, *, causal, window, scale=None):
    """One sequence: q (queries, heads, channels), k and v (keys, fewer heads, channels)."""
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    scores = torch.einsum("qhc,khc->hqk", q, k) * (scale or 1 / math.sqrt(q.shape[-1]))
    for query in range(q.shape[0]):
        own = query + k.shape[0] - q.shape[0]
        for other in range(k.shape[0]):
            is_behind = other > own and (causal or (window[1] >= 0 and other > own + window[1]))
            is_before = window[0] >= 0 and other < own - window[0]
            if is_behind or is_before:
                scores[:, query, other] = -math.inf
    return torch.einsum("hqk,khc->qhc", scores.softmax(-1), v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (2, 2), (0, 0)])
@pytest.mark.parametrize("queries", [1, 5, 8])
def test_it_is_attention_aligned_at_the_last_positions(causal, window, queries):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, h, 4) for n, h in ((queries, 4), (8, 2), (8, 2)))
    for device in ("cpu", "npu"):
        out = flash_attn_func(
            *(one.to(device) for one in (q, k, v)), causal=causal, window_size=window
        )
        for row in range(2):
            expected = written_out(q[row], k[row], v[row], causal=causal, window=window)
            torch.testing.assert_close(out[row].cpu(), expected)


def test_sequences_of_several_lengths_do_not_see_each_other():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 9, 2, 4).to("npu")
    ends = torch.tensor([0, 4, 5, 9], dtype=torch.int32)
    out = flash_attn_varlen_func(q, k, v, ends, ends, 4, 4, causal=True, softmax_scale=0.3)
    for first, last in ((0, 4), (4, 5), (5, 9)):
        one = slice(first, last)
        expected = written_out(
            *(x[one].cpu() for x in (q, k, v)), causal=True, window=(-1, -1), scale=0.3
        )
        torch.testing.assert_close(out[one].cpu(), expected)


def test_attention_sinks_are_refused():
    q = torch.ones(1, 2, 1, 4)
    with pytest.raises(InputError, match="attention sinks") as caught:
        flash_attn_func(q, q, q, s_aux=torch.ones(1))
    assert caught.value.code == "ascend-call"
