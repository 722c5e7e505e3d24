"""torch_npu's calls: their results, and refusals."""

import math

import pytest
import torch
import torch.nn.functional as F

from npu_runtime.errors import InputError
from npu_runtime.library_patches import ascend_calls
from npu_runtime.library_patches.ascend_calls import flash_attn_func, flash_attn_varlen_func


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    return torch.randn(3, 2, 4, 6, 8).to("npu")  # batch, heads, positions, channels


def test_attention_leaves_out_what_its_mask_marks(qkv):
    out_of_sight = (torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(1)) < 0.4).npu()
    out_of_sight[..., 0] = False
    (out,) = ascend_calls.npu_fusion_attention(
        *qkv, 4, "BNSD", atten_mask=out_of_sight, scale=0.2, pre_tockens=65536, next_tockens=65536
    )
    expected = F.scaled_dot_product_attention(*qkv, attn_mask=~out_of_sight, scale=0.2)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("mode", [2, 3])
def test_attention_is_causal_by_its_mode(qkv, mode):
    q, k, v = (one.transpose(1, 2) for one in qkv)
    (out,) = ascend_calls.npu_fusion_attention(q[:, :4], k, v, 4, "BSND", sparse_mode=mode)
    seen = torch.ones(4, 6, dtype=torch.bool).tril(0 if mode == 2 else 2).npu()
    expected = F.scaled_dot_product_attention(qkv[0][:, :, :4], *qkv[1:], attn_mask=seen, scale=1.0)
    torch.testing.assert_close(out, expected.transpose(1, 2))


def test_geglu_and_rms_norm_are_torchs():
    torch.manual_seed(0)
    x = torch.randn(3, 8).npu()
    other, gate = x.chunk(2, -1)
    torch.testing.assert_close(
        ascend_calls.npu_geglu(x)[0], other * F.gelu(gate, approximate="tanh")
    )
    weight = torch.rand(8).npu()
    torch.testing.assert_close(
        ascend_calls.npu_rms_norm(x, weight, epsilon=1e-5)[0], F.rms_norm(x, (8,), weight, 1e-5)
    )
    assert ascend_calls._C._storage_Use_Count(x.untyped_storage()._cdata) >= 1


@pytest.mark.parametrize(
    "call, shown",
    [
        (lambda q: ascend_calls.npu_rotary_mul, "torch_npu.npu_rotary_mul: "),
        (lambda q: ascend_calls.npu_fusion_attention(q, q, q, 4, "SBH"), 'input_layout="SBH"'),
        (
            lambda q: ascend_calls.npu_fusion_attention(q, q, q, 4, "BNSD", sparse_mode=4),
            "sparse_mode=4",
        ),
        (lambda q: ascend_calls.npu_fusion_attention(q, q, q, 4, "BNSD", pse=q), "with pse"),
        (
            lambda q: ascend_calls.npu_fusion_attention(q, q, q, 4, "BNSD", next_tockens=0),
            "next_tockens",
        ),
    ],
)
def test_other_calls_are_refused_by_name(qkv, call, shown):
    with pytest.raises(InputError, match="this npu is not Huawei's") as caught:
        call(qkv[0])
    assert caught.value.code == "ascend-call"
    assert shown in str(caught.value)


def test_a_program_may_ask_whether_a_call_is_there():
    assert hasattr(ascend_calls, "npu_geglu")
    assert not hasattr(ascend_calls, "npu_rotary_mul")


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
