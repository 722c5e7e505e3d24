"""The arithmetic of compression: error bounds and groups."""

from __future__ import annotations

import pytest
import torch

from npu_compiler import compress_to_i4, quantize_tensor
from npu_compiler.errors import OptionError
from npu_compiler.quantize import fitting_group, quantize_weight
from npu_ops.fused.quantized_linear import dequantize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits, group", [(8, None), (4, 32), (4, 64), (4, None)])
def test_error_is_at_most_half_a_step(bits, group, symmetric, dtype):
    weight = torch.randn(48, 128).to(dtype)
    quantized = quantize_weight(weight, bits=bits, group_size=group, symmetric=symmetric)
    error = (quantized.dequantize() - weight.float()).abs()
    step = quantized.scale.expand(-1, -1, 128 // quantized.groups).flatten(1)
    assert (error <= step * 0.5 * (1 + 1e-3) + (0 if symmetric else 1e-6)).all()


@pytest.mark.parametrize("symmetric", [True, False])
def test_zeros_stay_zeros(symmetric):
    weight = torch.randn(4, 64)
    weight[1] = 0
    weight[:, 3] = 0
    exact = quantize_weight(weight, bits=4, group_size=32, symmetric=symmetric).dequantize()
    assert (exact[1] == 0).all()
    assert (exact[:, 3] == 0).all()


def test_values_of_one_sign_keep_their_range():
    weight = torch.rand(4, 64) + 5
    exact = quantize_weight(weight, bits=8).dequantize()
    assert (exact - weight).abs().max() <= 6 / 255 / 2 * 1.01


@pytest.mark.parametrize(
    "columns, wish, found",
    [(256, 64, 64), (256, 128, 128), (96, 64, 32), (192, 128, 64), (100, 64, None), (576, 128, 64)],
)
def test_group_is_the_largest_that_divides_and_is_not_above_the_wish(columns, wish, found):
    assert fitting_group(columns, wish) == found


@pytest.mark.parametrize("shape, group", [((4, 100), 64), ((4,), None), ((2, 4, 8), None)])
def test_wrong_shapes_are_errors(shape, group):
    with pytest.raises(OptionError) as error:
        quantize_weight(torch.randn(shape), bits=4, group_size=group)
    assert error.value.code == "quantize-weight"
    assert str(shape) in str(error.value)


def test_large_matrices_are_quantized_in_parts(monkeypatch):
    from npu_compiler.quantize import weights

    matrix = torch.randn(64, 128)
    whole = quantize_weight(matrix, bits=4, group_size=64)
    monkeypatch.setattr(weights, "_CHUNK_ELEMENTS", 1024)
    parts = quantize_weight(matrix, bits=4, group_size=64)
    assert torch.equal(whole.values, parts.values)
    assert torch.equal(whole.scale, parts.scale)


@pytest.mark.parametrize(
    "options", [{"bits": 3}, {"bits": 4, "group_size": 0}, {"bits": 4, "group_size": -1}]
)
def test_bits_and_groups_that_cannot_be(options):
    with pytest.raises(OptionError) as caught:
        quantize_weight(torch.ones(4, 32), **options)
    assert caught.value.code == "quantize-weight"


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
