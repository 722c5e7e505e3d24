import pytest
import torch

from npu_llm.errors import ModelError

CONFIG = {"quant_method": "hqq"}


def layer(codes, scale, zero, *, shape, bits, axis, as_float=False):
    """The tensors of a layer, packed one code after the other: slow, and plainly right."""
    each, kind = (10, torch.int32) if bits == 3 else (8 // bits, torch.uint8)
    rows = -(-len(codes) // each)
    packed = torch.zeros(rows, codes.shape[1], dtype=torch.int64)
    for row, values in enumerate(codes):
        packed[row % rows] |= values << (bits * (each - 1 - row // rows))
    packed = packed.to(kind)
    return {
        "a.W_q": packed.view(torch.float16) if as_float else packed,
        "a.scale": scale,
        "a.zero": zero,
        "a.shape": torch.tensor(shape),
        "a.nbits": torch.tensor(bits, dtype=torch.int32),
        "a.axis": torch.tensor(axis, dtype=torch.int32),
        "a.packing": torch.zeros(7, dtype=torch.uint8),
        "a.bias": torch.ones(shape[0]),
    }


@pytest.mark.parametrize("as_float", [False, True])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_integers_and_float_zeros(folder, draw, bits, axis, as_float):
    shape, size = (16, 128), 64
    groups = 16 * 128 // size
    codes = draw(0, 2**bits, groups, size)
    scale, zero = draw(1, 50, groups, 1) / 64, draw(0, 2**bits * 8, groups, 1) / 8
    expected = ((codes - zero) * scale).float()
    if axis == 0:
        codes, scale, zero, expected = codes.t(), scale.t(), zero.t(), expected.t()
    tensors = layer(codes, scale, zero, shape=shape, bits=bits, axis=axis, as_float=as_float)
    scheme = folder.scheme(tensors, CONFIG)
    values, _ = folder.decoded(tensors, CONFIG)
    torch.testing.assert_close(values, expected.reshape(shape), rtol=1e-6, atol=1e-5)
    assert scheme.is_kept == (axis == 1 and bits <= 4)
    assert sorted(scheme.plain) == ["a.bias"]


def test_what_is_not_read_is_an_error(folder):
    whole = layer(
        torch.zeros(4, 32, dtype=torch.int64), torch.ones(4, 1), torch.ones(4, 1),
        shape=(4, 32), bits=4, axis=1,
    )  # fmt: skip
    undescribed = {name: one for name, one in whole.items() if name != "a.nbits"}
    with pytest.raises(ModelError, match=r"must describe it.*\[quantization-parts\]"):
        folder.scheme(undescribed, CONFIG)
    for name, shape in (("a.W_q", (1, 32)), ("a.scale", (3, 1))):
        changed = {**whole, name: torch.zeros(shape).to(whole[name].dtype)}
        with pytest.raises(ModelError, match=r"\[quantization-parts\]"):
            folder.scheme(changed, CONFIG)
    with pytest.raises(ModelError, match=r"quantized scales.*\[quantization-form\]"):
        folder.scheme({**whole, "a.scale_q": torch.ones(4)}, CONFIG)
    with pytest.raises(ModelError, match=r"5 bits.*\[quantization-form\]"):
        folder.scheme({**whole, "a.nbits": torch.tensor(5)}, CONFIG)
