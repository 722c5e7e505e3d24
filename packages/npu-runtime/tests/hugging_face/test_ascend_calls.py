"""torch_npu's calls: their results, and what is refused."""

import pytest
import torch
import torch.nn.functional as F

from npu_runtime.errors import InputError
from npu_runtime.hugging_face import ascend_calls


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
