"""Attention on tensors."""

import pytest
import torch
import torch.nn.functional as F

from npu_llm.compat.intel_npu_acceleration_library import dtypes
from npu_llm.compat.intel_npu_acceleration_library.functional import scaled_dot_product_attention
from npu_llm.errors import OptionError


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
def test_attention_reads_a_mask_unless_it_is_causal(is_causal, has_mask, monkeypatch):
    monkeypatch.setattr(dtypes, "_told", set(dtypes._TEXTS))
    query, key = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    mask = torch.randn(1, 1, 3, 5) if has_mask else None
    found = scaled_dot_product_attention(query, key, key, mask, is_causal=is_causal)
    read = None if is_causal else mask
    expected = F.scaled_dot_product_attention(query, key, key, read, is_causal=is_causal)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("wrong", [{"dropout_p": 0.1}, {"scale": 0.5}])
def test_dropout_and_scales_are_refused(wrong):
    x = torch.ones(1, 1, 2, 4)
    with pytest.raises(OptionError, match="no dropout and no scale") as error:
        scaled_dot_product_attention(x, x, x, **wrong)
    assert error.value.code == "compat-attention"
