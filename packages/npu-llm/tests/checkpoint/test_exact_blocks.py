import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from npu_llm.checkpoint.exact_blocks import exact_blocks


def dequantized(kind, rows=7, columns=96, seed=0):
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return torch.from_numpy(gguf.dequantize(gguf.quantize(values, kind), kind))


def test_blocks_of_q4_0_are_found():
    weight = dequantized(GGMLQuantizationType.Q4_0)
    weight[2, 32:64] = 0.0
    found = exact_blocks(weight)
    assert found is not None
    assert found.values.shape == (7, 3, 32)
    assert found.zero_point is None
    assert torch.equal(found.scale.half().float(), found.scale)
    assert torch.equal(found.dequantize(), weight)


def test_any_integers_and_scales_of_a_file_are_found():
    """Other encoders use other integers than llama.cpp's, and scales of either sign."""
    generator = np.random.default_rng(1)
    d = generator.standard_normal((40, 1)).astype(np.float16)
    d[3], d[4] = 6e-8, -65504.0 / 8
    raw = np.concatenate([d.view(np.uint8), generator.integers(0, 256, (40, 16), np.uint8)], 1)
    raw[5, 2:] = 0x98  # only 0 and 1
    raw[6, 2:] = 0xFB  # 3 and 7: none has the lowest integer
    raw = raw.reshape(20, 36)
    weight = torch.from_numpy(gguf.dequantize(raw, GGMLQuantizationType.Q4_0))
    found = exact_blocks(weight)
    assert found is not None
    assert torch.equal(found.dequantize(), weight)


def test_rows_in_another_order_and_transposed_weights_are_found():
    weight = dequantized(GGMLQuantizationType.Q4_0)[torch.tensor([4, 0, 6, 2, 1, 5, 3])]
    stored = weight.t().contiguous()
    found = exact_blocks(stored.t())
    assert found is not None
    assert torch.equal(found.dequantize(), weight)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q5_0", "F16"])
def test_other_blocks_are_none(kind):
    assert exact_blocks(dequantized(GGMLQuantizationType[kind])) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e-30, 3e38])
@pytest.mark.parametrize("row", [0, 6])
def test_one_value_that_does_not_fit_refuses_all(value, row):
    weight = dequantized(GGMLQuantizationType.Q4_0)
    weight[row, 40] = value
    assert exact_blocks(weight) is None


def test_a_value_that_is_off_by_one_bit_refuses_all():
    weight = dequantized(GGMLQuantizationType.Q4_0)
    at = int(weight[5].abs().argmax())
    weight[5, at] = torch.nextafter(weight[5, at], torch.tensor(9.0))
    assert exact_blocks(weight) is None


def test_shapes_without_blocks_are_none():
    assert exact_blocks(torch.zeros(3, 40)) is None
    assert exact_blocks(torch.zeros(64)) is None
    assert exact_blocks(torch.zeros(0, 64)) is None
