"""fused_attention with a cache: written in place, at the right place, on any view."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from npu_ops.fused import fused_attention

DEVICES = ("cpu", "npu")
HEADS, SHARED, SIZE, CAPACITY = 6, 2, 8, 16


def tokens(count, device, batch=2):
    shapes = ((batch, HEADS, count, SIZE), *[(batch, SHARED, count, SIZE)] * 2)
    return [torch.randn(*shape).to(device) for shape in shapes]


def caches(device, batch=2):
    return [torch.zeros(batch, SHARED, CAPACITY, SIZE, device=device) for _ in range(2)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", [None, 3])
def test_steps_equal_attention_over_all_tokens(device, window):
    query, key, value = tokens(9, device)
    expected = fused_attention.reference(query, key, value, is_causal=True, window=window)
    key_cache, value_cache = caches(device)
    results, position = [], 0
    for count in (5, 1, 1, 2):
        step = slice(position, position + count)
        results.append(
            torch.ops.npu.fused_attention(
                query[:, :, step], key[:, :, step], value[:, :, step],
                key_cache, value_cache, position, window=window,
            )
        )  # fmt: skip
        position += count
    torch.testing.assert_close(torch.cat(results, 2), expected)
    assert torch.equal(key_cache[:, :, :9], key)
    assert torch.equal(value_cache[:, :, :9], value)
    assert not key_cache[:, :, 9:].any()


@pytest.mark.parametrize("device", DEVICES)
def test_cache_that_is_a_view_is_written_where_it_lies(device):
    query, key, value = tokens(2, device)
    # (layers, batch, capacity, heads, size), the layout of some caches
    whole = torch.zeros(3, 2, 2, CAPACITY, SHARED, SIZE, device=device)
    key_cache, value_cache = (whole[1, i].transpose(1, 2) for i in range(2))
    result = torch.ops.npu.fused_attention(query, key, value, key_cache, value_cache, 4)
    theirs = [torch.zeros(2, SHARED, CAPACITY, SIZE) for _ in range(2)]
    expected = fused_attention.cache_reference(query.cpu(), key.cpu(), value.cpu(), *theirs, 4)
    torch.testing.assert_close(result.cpu(), expected)
    assert torch.equal(whole[1, 0, :, 4:6].transpose(1, 2), key)
    assert torch.equal(whole[1, 1, :, 4:6].transpose(1, 2), value)
    written = whole.clone()
    written[1, :, :, 4:6] = 0
    assert not written.any()


@pytest.mark.parametrize("device", DEVICES)
def test_address_of_the_cache_stays_and_its_version_counts(device):
    query, key, value = tokens(1, device)
    key_cache, value_cache = caches(device)
    before = (key_cache.data_ptr(), key_cache._version, value_cache._version)
    torch.ops.npu.fused_attention(query, key, value, key_cache, value_cache, 0)
    after = (key_cache.data_ptr(), key_cache._version, value_cache._version)
    assert after == (before[0], before[1] + 1, before[2] + 1)


@pytest.mark.parametrize("device", DEVICES)
def test_cache_in_inference_mode(device):
    with torch.inference_mode():
        query, key, value = tokens(3, device)
        key_cache, value_cache = caches(device)
        torch.ops.npu.fused_attention(query, key, value, key_cache, value_cache, 2)
    assert torch.equal(key_cache[:, :, 2:5], key)


@pytest.mark.parametrize("device", DEVICES)
def test_cache_of_another_length_of_dtype_bfloat16(device):
    query, key, value = (part.bfloat16() for part in tokens(4, device))
    key_cache, value_cache = (cache.bfloat16() for cache in caches(device))
    result = torch.ops.npu.fused_attention(query, key, value, key_cache, value_cache, 0)
    expected = scaled_dot_product_attention(
        query.cpu(), key.cpu(), value.cpu(), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(result.cpu(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_registration_says_which_arguments_are_written(device):
    op = torch.ops.npu.fused_attention.cache
    arguments = (*tokens(2, device), *caches(device), 3)
    checks = ["test_schema", "test_faketensor"]
    torch.library.opcheck(op, arguments, {"window": 4}, test_utils=checks)


@pytest.mark.parametrize("device", DEVICES)
def test_gradient_through_a_cache_is_refused(device):
    query, key, value = tokens(1, device)
    with pytest.raises(RuntimeError, match=r"npu\.fused_attention: .*\[op-gradient\]"):
        torch.ops.npu.fused_attention(query.requires_grad_(), key, value, *caches(device), 0)


def test_grouped_heads_and_causality_equal_torchs_attention():
    query, key, value = tokens(7, "npu")
    result = torch.ops.npu.fused_attention(query, key, value, is_causal=True)
    expected = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("length, keys, window", [(300, 300, 70), (130, 200, 64), (9, 9, 1)])
def test_window_in_blocks_equals_a_plain_mask(length, keys, window):
    query = torch.randn(1, 4, length, 16, device="npu")
    key, value = (torch.randn(1, 2, keys, 16, device="npu") for _ in range(2))
    at = torch.arange(length).unsqueeze(1) + keys - length
    column = torch.arange(keys)
    mask = ((column <= at) & (column > at - window)).to("npu")
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    result = torch.ops.npu.fused_attention(query, key, value, is_causal=True, window=window)
    torch.testing.assert_close(result, expected)
