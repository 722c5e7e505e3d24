import json

import gguf
import pytest
import torch
from gguf import quants
from safetensors.torch import save_file

from npu_llm.checkpoint.file_headers import read_folder_headers
from npu_llm.checkpoint.quantized.encoded import AffineWeight, IntegerWeight
from npu_llm.checkpoint.quantized.loading import LazyWeight
from npu_llm.checkpoint.quantized.scheme import find_scheme
from npu_llm.errors import ModelError

CONFIG = {"quantization_config": {"quant_method": "torchao"}}
GROUP = 32


@pytest.fixture
def found(tmp_path):
    """found(parts, kind, attributes): the scheme of a checkpoint of one weight."""

    def find(parts, kind, **attributes):
        about = {"_type": kind, "_data": attributes, "_tensor_data_names": list(parts)}
        tensors = {f"a._weight_{role}": one.contiguous() for role, one in parts.items()}
        metadata = {
            "a.weight": json.dumps(about),
            "b.weight": json.dumps({"_type": "Tensor"}),
            "tensor_names": json.dumps(["a.weight", "b.weight"]),
            "format": "pt",
        }
        file = tmp_path / "model.safetensors"
        save_file({**tensors, "b.weight": torch.ones(2, 2)}, file, metadata if kind else {})
        return find_scheme(tmp_path, CONFIG, read_folder_headers(tmp_path))

    return find


def decoded(scheme):
    """The weight's values, and their parts."""
    assert sorted(scheme.plain) == ["b.weight"]
    weight = scheme.weights["a.weight"]
    made = weight.decode(lambda role: scheme.files.read(weight.parts[role]))
    values = made if isinstance(made, torch.Tensor) else made.floats()
    assert values.shape == weight.shape
    return values, made


def spread(scale, size):
    return scale.float().repeat_interleave(size, 1)


@pytest.mark.parametrize("scale_shape", [(), (1, 1), (8, 1), (2, 4)])
def test_float8(found, draw, scale_shape):
    stored = draw(-100, 100, 8, 64).to(torch.float8_e4m3fn)
    scale = draw(1, 50, *(scale_shape or (1,))).view(scale_shape) / 64
    scheme = found({"qdata": stored, "scale": scale}, "Float8Tensor", block_size=[1, 64])
    rows, columns = scale_shape or (1, 1)
    whole = scale.view(rows, columns).repeat_interleave(8 // rows, 0)
    expected = stored.float() * whole.repeat_interleave(64 // columns, 1)
    assert torch.equal(decoded(scheme)[0], expected)
    assert not scheme.is_kept


@pytest.mark.parametrize("bits, size", [(8, 64), (8, 32), (4, 32)])
@pytest.mark.parametrize("has_zeros", [True, False])
def test_one_integer_to_a_byte(found, draw, bits, size, has_zeros):
    low = -(2 ** (bits - 1))
    values, scale = draw(low, -low, 16, 64).to(torch.int8), draw(1, 50, 16, 64 // size) / 64
    zero = draw(low, -low, 16, 64 // size).to(torch.int8)
    parts = {"qdata": values, "scale": scale, **({"zero_point": zero} if has_zeros else {})}
    kind = "IntxUnpackedToInt8Tensor" if bits == 4 else "Int8Tensor"
    dtype = {"_type": "torch.dtype", "_data": f"int{bits}"}
    scheme = found(parts, kind, block_size=[1, size], target_dtype=dtype)
    shifted = values.float() - spread(zero, size) * has_zeros
    read, made = decoded(scheme)
    assert torch.equal(read, shifted * spread(scale, size))
    assert isinstance(made, IntegerWeight)
    assert scheme.integer_bits == (0 if (bits, size) == (8, 32) else bits)


def test_nibbles_with_float_zeros(found, draw):
    codes, scale, zero = draw(-8, 8, 16, 64), draw(1, 9, 2, 16) / 64, draw(-9, 9, 2, 16) / 64
    packed = ((codes[:, ::2] & 15) | (codes[:, 1::2] << 4)).to(torch.int8)
    parts = {"qdata": packed, "scale": scale.bfloat16(), "zero_point": zero.bfloat16()}
    expected = codes * spread(scale.t(), GROUP) + spread(zero.t(), GROUP)
    scheme = found(parts, "Int4Tensor", block_size=[1, GROUP])
    values, made = decoded(scheme)
    assert torch.equal(values, expected)
    assert isinstance(made, AffineWeight)
    blocks = LazyWeight(scheme.weights["a.weight"], scheme.files, (16, 64)).blocks()
    in_blocks = quants.dequantize(blocks.rows(), gguf.GGMLQuantizationType[blocks.type])
    torch.testing.assert_close(torch.from_numpy(in_blocks), expected, rtol=1e-3, atol=1e-3)
    factors = draw(1, 9, 64) / 4
    smooth = found({**parts, "act_pre_scale": factors}, "Int4Tensor", block_size=[1, GROUP])
    assert torch.equal(decoded(smooth)[0], expected * factors)
    assert not smooth.is_kept


def test_tiles_of_tensor_cores(found, draw):
    outputs, inputs, padded = 12, 64, (16, 256)
    codes = draw(0, 16, *padded)
    words = torch.zeros(2, 2, 32, 4, dtype=torch.int64)
    for tile, wide, lane, word in torch.cartesian_prod(*map(torch.arange, words.shape)).tolist():
        first = (wide * 8 + word * 2) * 16 + lane % 4 * 2
        for place, at in enumerate((0, 8, 16, 24, 1, 9, 17, 25)):
            code = int(codes[tile * 8 + lane // 4, first + at])
            words[tile, wide, lane, word] |= code << (4 * place)
    words = (words - (words >> 31 << 32)).to(torch.int32)
    scale, zero = draw(1, 9, 8, 16) / 64, draw(-9, 9, 8, 16) / 64
    parts = {"qdata": words, "scale_and_zero": torch.stack([scale, zero], -1).bfloat16()}
    scheme = found(
        parts, "Int4TilePackedTo4dTensor", block_size=[1, GROUP], shape=[outputs, inputs]
    )
    expected = (codes - 8) * spread(scale.t(), GROUP) + spread(zero.t(), GROUP)
    assert torch.equal(decoded(scheme)[0], expected[:outputs, :inputs])
    assert scheme.is_kept


def test_what_is_not_read_is_an_error(found):
    integers, ones = torch.zeros(16, 64, dtype=torch.int8), torch.ones(16, 1)
    with pytest.raises(ModelError, match=r"NVFP4Tensor \(a.weight\).*\[quantization-form\]"):
        found({"qdata": integers, "scale": ones}, "NVFP4Tensor")
    with pytest.raises(ModelError, match=r"without the metadata.*\[quantization-form\]"):
        found({"qdata": integers, "scale": ones}, "")
    for kind in ("Int8Tensor", "Float8Tensor", "Int4Tensor"):
        with pytest.raises(ModelError, match=r"\[quantization-parts\]"):
            found({"qdata": integers, "scale": torch.ones(3, 5)}, kind, block_size=[1, 64])
    with pytest.raises(ModelError, match=r"\[quantization-parts\]"):
        found({"qdata": integers}, "Int4TilePackedTo4dTensor", block_size=[1, 64])
