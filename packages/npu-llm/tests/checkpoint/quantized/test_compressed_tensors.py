import pytest
import torch

from npu_llm.checkpoint.quantized.encoded import as_kernels_hold
from npu_llm.errors import ModelError

from .conftest import as_words

OUTPUTS, INPUTS = 32, 96


def config(bits=4, layout="pack-quantized", **weights):
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int", **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
    }


def in_separate_words(values, bits):
    """Packs rows such that no integer crosses a word, as before version 0.16."""
    each = 32 // bits
    padded = torch.nn.functional.pad(values, (0, -values.shape[1] % each))
    words = [as_words(part, bits) for part in padded.split(each, 1)]
    return torch.cat(words, 1)


@pytest.mark.parametrize("size", [32, INPUTS])
@pytest.mark.parametrize(
    "bits, pack", [(4, as_words), (3, as_words), (3, in_separate_words), (8, as_words)]
)
@pytest.mark.parametrize("has_zeros", [False, True])
def test_packed_integers(folder, draw, size, bits, pack, has_zeros):
    middle = 1 << (bits - 1)
    values = draw(-middle, middle, OUTPUTS, INPUTS)
    zeros = draw(-middle, middle, OUTPUTS, INPUTS // size) * has_zeros
    scales = (draw(1, 50, OUTPUTS, INPUTS // size) / 1024).bfloat16()
    tensors = {
        "a.weight_packed": pack(values + middle, bits),
        "a.weight_scale": scales,
        "a.weight_shape": torch.tensor([OUTPUTS, INPUTS]),
    }
    if has_zeros:
        tensors["a.weight_zero_point"] = pack(zeros.t() + middle, bits).t()
    spread = zeros.repeat_interleave(size, 1), scales.float().repeat_interleave(size, 1)
    found, integers = folder.decoded(tensors, config(bits))
    assert torch.equal(found, (values - spread[0]) * spread[1])
    held = as_kernels_hold(integers)
    assert (held is None) == (bits == 8 and size < INPUTS)
    assert held is None or (held.zero_point is None) == (not has_zeros)


def test_groups_by_an_index(folder, draw):
    values, index = draw(-8, 8, OUTPUTS, INPUTS), draw(0, 3, INPUTS)
    scales = draw(1, 50, OUTPUTS, 3) / 1024
    tensors = {
        "a.weight_packed": as_words(values + 8, 4),
        "a.weight_scale": scales,
        "a.weight_shape": torch.tensor([OUTPUTS, INPUTS]),
        "a.weight_g_idx": index.int(),
    }
    found, _ = folder.decoded(tensors, config())
    assert torch.equal(found, values * scales[:, index])


@pytest.mark.parametrize("shape", [(1,), (OUTPUTS, 1), (OUTPUTS, 3)])
def test_plain_integers(folder, draw, shape):
    values = draw(-128, 128, OUTPUTS, INPUTS).to(torch.int8)
    scales = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    zeros = draw(-4, 5, *shape).to(torch.int8)
    tensors = {"a.weight": values, "a.weight_scale": scales, "a.weight_zero_point": zeros}
    found, integers = folder.decoded(tensors, config(8, "int-quantized"))
    size = INPUTS // (shape[1] if len(shape) == 2 else 1)
    spread = [one.reshape(-1, one.shape[-1]).repeat_interleave(size, 1) for one in (zeros, scales)]
    torch.testing.assert_close(found, (values - spread[0].float()) * spread[1])
    held = as_kernels_hold(integers)
    assert (held is None) == (len(shape) == 2 and shape[1] == 3)
    if held is not None:
        exact = (held.values.float() - held.zero_point.float()) * held.scale
        torch.testing.assert_close(exact.flatten(1), found)


def test_floats_of_4_bits(folder, draw):
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    table += [-value for value in table]
    codes = draw(0, 16, 8, 32)
    scales = torch.tensor([[0.5, 2.0]]).expand(8, 2)
    tensors = {
        "a.weight_packed": (codes[:, ::2] + 16 * codes[:, 1::2]).to(torch.uint8),
        "a.weight_scale": scales.to(torch.float8_e4m3fn),
        "a.weight_global_scale": torch.tensor([4.0]),
    }
    found, _ = folder.decoded(tensors, config(4, "nvfp4-pack-quantized"))
    for row in range(8):
        for column in range(32):
            expected = table[codes[row, column]] * scales[row, column // 16] / 4
            assert found[row, column] == expected


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"format": "marlin-24"}, "marlin-24"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, "rotations"),
    ],
)
def test_other_forms_are_errors(folder, change, reason):
    with pytest.raises(ModelError, match=rf"{reason}.*\[quantization-form\]"):
        folder.scheme({"a.weight": torch.ones(2)}, config() | change)


def test_words_that_do_not_fit_are_an_error(folder, draw):
    tensors = {
        "a.weight_packed": as_words(draw(0, 16, OUTPUTS, 8), 4),
        "a.weight_scale": torch.ones(OUTPUTS, 3),
        "a.weight_shape": torch.tensor([OUTPUTS, INPUTS]),
    }
    with pytest.raises(ModelError, match=r"\[quantization-parts\]"):
        folder.scheme(tensors, config())
