import copy

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "float mask": {"attn_mask": torch.randn(6, 6)},
    "bool mask": {"attn_mask": torch.rand(6, 6) > 0.3},
    "dropout": {"dropout_p": 0.5},
    "scale": {"scale": 0.25},
}


def on_npu(options):
    return {k: v.to("npu") if isinstance(v, torch.Tensor) else v for k, v in options.items()}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_every_form_equals_the_cpu(options, needs_gradient):
    torch.manual_seed(0)
    host = [torch.randn(2, 4, 6, 8, requires_grad=needs_gradient) for _ in range(3)]
    there = [x.detach().to("npu").requires_grad_(needs_gradient) for x in host]
    torch.manual_seed(1)
    expected = scaled_dot_product_attention(*host, **options)
    torch.manual_seed(1)
    got = scaled_dot_product_attention(*there, **on_npu(options))
    torch.testing.assert_close(got.cpu(), expected)
    if needs_gradient:
        expected.square().sum().backward()
        got.square().sum().backward()
        for theirs, ours in zip(host, there, strict=True):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_the_flash_kernel_is_chosen_where_the_cpu_chooses_it():
    q = torch.randn(1, 2, 6, 8, device="npu")
    choice = torch._fused_sdp_choice(q, q, q)
    assert choice == torch._fused_sdp_choice(*[x.cpu() for x in (q, q, q)])
    with sdpa_kernel(SDPBackend.MATH):
        plain = scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(scaled_dot_product_attention(q, q, q), plain)


def test_grouped_heads():
    q, kv = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    expected = scaled_dot_product_attention(q, kv, kv, enable_gqa=True)
    got = scaled_dot_product_attention(q.to("npu"), kv.to("npu"), kv.to("npu"), enable_gqa=True)
    torch.testing.assert_close(got.cpu(), expected)


@pytest.mark.parametrize("is_training", [True, False])
def test_encoder_layer_and_its_fast_path(is_training):
    torch.manual_seed(0)
    host = torch.nn.TransformerEncoderLayer(16, 4, dropout=0.0, batch_first=True).train(is_training)
    there = copy.deepcopy(host).to("npu")
    x = torch.randn(2, 5, 16)
    with torch.set_grad_enabled(is_training):
        torch.testing.assert_close(there(x.to("npu")).cpu(), host(x))
