"""quantize_tensor and compress_to_i4."""

from __future__ import annotations

import pytest
import torch

from npu_compiler import compress_to_i4, quantize_tensor
from npu_compiler.errors import OptionError
from npu_ops.fused.quantized_linear import dequantize


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("limits, groups", [((-128, 127), 1), ((-8, 7), 1), ((-8, 7), 4)])
def test_integers_times_scale_are_the_weight_to_half_a_step(limits, groups, dtype):
    weight = torch.randn(6, 128).to(dtype)
    integers, scale = quantize_tensor(
        weight, limits, group_size=None if groups == 1 else 128 // groups
    )
    assert (integers.dtype, integers.shape, scale.shape) == (torch.int8, weight.shape, (6, groups))
    assert limits[0] <= int(integers.min()) <= int(integers.max()) <= limits[1]
    steps = scale.repeat_interleave(128 // groups, 1)
    assert ((integers * steps - weight.float()).abs() <= steps * 0.501).all()


def test_row_of_zeros_leaves_the_others_exact():
    weight = torch.randn(4, 16)
    weight[2] = 0
    integers, scale = quantize_tensor(weight)
    alone, scale_alone = quantize_tensor(weight[:2])
    assert (integers[2] == 0).all()
    assert torch.equal(integers[:2], alone)
    assert torch.equal(scale[:2], scale_alone)


def test_packed_nibbles_are_what_the_op_reads():
    integers, scale = quantize_tensor(torch.randn(5, 32), (-8, 7), group_size=16)
    packed = compress_to_i4(integers)
    assert (packed.dtype, packed.shape) == (torch.uint8, (5, 16))
    expected = integers * scale.repeat_interleave(16, 1)
    assert torch.equal(dequantize(packed, scale, bits=4), expected)


@pytest.mark.parametrize(
    "call, code, text",
    [
        (lambda: quantize_tensor(torch.ones(2, 2), (-4, 3)), "quantize-range", "(-4, 3)"),
        (lambda: quantize_tensor(torch.ones(4)), "quantize-weight", "(4,)"),
        (lambda: compress_to_i4(torch.ones(2, 2)), "quantize-values", "torch.float32"),
        (lambda: compress_to_i4(torch.ones(2, 3, dtype=torch.int8)), "quantize-values", "(2, 3)"),
        (lambda: compress_to_i4(torch.tensor([[8, 0]])), "quantize-values", "0 to 8"),
    ],
)
def test_what_does_not_fit_is_an_error(call, code, text):
    with pytest.raises(OptionError) as error:
        call()
    assert error.value.code == code
    assert text in str(error.value)
