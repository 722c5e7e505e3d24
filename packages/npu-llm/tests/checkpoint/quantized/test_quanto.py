import pytest
import torch

from npu_llm.errors import ModelError

CONFIG = {"quant_method": "quanto"}


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_8_bits(folder, draw, dtype):
    stored = draw(-100, 100, 16, 32).to(dtype)
    scale = draw(1, 50, 16, 1) / 64
    tensors = {"a.weight._data": stored, "a.weight._scale": scale, "a.input_scale": torch.ones(1)}
    values, _ = folder.decoded(tensors, CONFIG)
    assert torch.equal(values, stored.float() * scale)


@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize("has_float_shift", [True, False])
def test_packed_groups(folder, draw, bits, has_float_shift):
    groups, size, each = 8, 16, 8 // bits
    codes = draw(0, 2**bits, groups, size)
    scale = draw(1, 50, groups, 1) / 64
    shift = draw(1, 50, groups, 1) / 8 if has_float_shift else draw(0, 2**bits, groups, 1)
    parts = codes.view(each, groups // each, size)
    packed = sum(parts[at] * 2 ** (bits * at) for at in range(each)).to(torch.uint8)
    tensors = {
        "a.weight._data._data": packed,
        "a.weight._scale": scale,
        "a.weight._shift": shift if has_float_shift else shift.to(torch.int8),
    }
    values, _ = folder.decoded(tensors, CONFIG)
    expected = codes * scale - shift if has_float_shift else (codes - shift) * scale
    assert torch.equal(values, expected)


def test_groups_that_do_not_fit_are_an_error(folder):
    tensors = {
        "a.weight._data._data": torch.zeros(3, 16, dtype=torch.uint8),
        "a.weight._scale": torch.ones(32, 1),
        "a.weight._shift": torch.ones(32, 1),
    }
    with pytest.raises(ModelError, match=r"3 packed rows for 32 groups.*\[quantization-parts\]"):
        folder.scheme(tensors, CONFIG)
