"""Rounding a matrix by the moments of its inputs: what it gains, its grids, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.errors import OptionError
from npu_compiler.quantize import quantize_weight
from npu_compiler.quantize.gptq import round_by_moments


def correlated(columns=128, rank=16, count=512):
    """Inputs that lie near a subspace, as those of language models do, some channels large."""
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, rank, generator=made) @ torch.randn(rank, columns, generator=made)
    inputs += 0.1 * torch.randn(count, columns, generator=made)
    inputs[:, ::16] *= 8
    return inputs


def weight_of(rows=48, columns=128):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))


def product_error(weight, quantized, inputs):
    exact = inputs @ weight.t()
    return float((inputs @ quantized.dequantize().t() - exact).norm() / exact.norm())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_products_of_correlated_inputs_are_nearer_than_by_rounding(group_size, symmetric):
    weight, inputs = weight_of(), correlated()
    options = {"group_size": group_size, "symmetric": symmetric}
    nearest = quantize_weight(weight, bits=4, **options)
    by_data = round_by_moments(weight, inputs.t() @ inputs, **options)
    error = product_error(weight, by_data, inputs)
    assert error < 0.5 * product_error(weight, nearest, inputs)


def test_gain_holds_for_inputs_that_were_not_seen():
    weight, inputs = weight_of(), correlated(count=1024)
    seen, other = inputs[::2], inputs[1::2]
    nearest = quantize_weight(weight, bits=4, group_size=64)
    by_data = round_by_moments(weight, seen.t() @ seen, group_size=64)
    assert product_error(weight, by_data, other) < 0.5 * product_error(weight, nearest, other)


def test_drift_brings_products_back_to_what_they_were():
    weight, before = weight_of(), correlated()
    noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(2))
    now = 0.9 * before + 0.3 * noise  # what rounded layers before it may do to its inputs
    moments, drift = now.t() @ now, (before - now).t() @ now
    plain = round_by_moments(weight, moments, group_size=64)
    corrected = round_by_moments(weight, moments, group_size=64, drift=drift)

    def error(found):
        return (now @ found.dequantize().t() - before @ weight.t()).norm()

    assert error(corrected) < 0.9 * error(plain)


def test_no_drift_and_one_of_zeros_are_the_same():
    weight, inputs = weight_of(), correlated()
    moments = inputs.t() @ inputs
    plain = round_by_moments(weight, moments, group_size=64)
    zeros = round_by_moments(weight, moments, group_size=64, drift=torch.zeros_like(moments))
    assert torch.equal(plain.dequantize(), zeros.dequantize())


def test_uncorrelated_inputs_are_no_worse_than_rounding():
    weight = weight_of()
    nearest = quantize_weight(weight, bits=4, group_size=64)
    by_data = round_by_moments(weight, torch.eye(128), group_size=64)
    error = (by_data.dequantize() - weight).norm()
    assert error <= (nearest.dequantize() - weight).norm()


@pytest.mark.parametrize(
    "symmetric, dtype, low, high", [(False, torch.uint8, 0, 15), (True, torch.int8, -8, 7)]
)
def test_integers_stay_in_four_bits_and_scales_above_zero(symmetric, dtype, low, high):
    inputs = correlated()
    found = round_by_moments(weight_of(), inputs.t() @ inputs, group_size=32, symmetric=symmetric)
    assert found.values.dtype == dtype
    assert found.values.shape == (48, 4, 32)
    assert low <= int(found.values.min()) < int(found.values.max()) <= high
    assert found.scale.shape == (48, 4, 1)
    assert bool((found.scale > 0).all())
    assert (found.zero_point is None) == symmetric


def test_zero_points_are_those_of_their_groups():
    weight = weight_of().abs_()
    weight[:, 64:] *= -1
    inputs = correlated()
    found = round_by_moments(weight, inputs.t() @ inputs, group_size=64)
    assert found.zero_point[:, 0].max() == 0
    assert found.zero_point[:, 1].min() == 15


def test_two_runs_are_equal():
    weight, inputs = weight_of(), correlated()
    moments = inputs.t() @ inputs
    first = round_by_moments(weight, moments, group_size=64)
    second = round_by_moments(weight, moments, group_size=64)
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.scale, second.scale)
    assert torch.equal(first.zero_point, second.zero_point)


def test_arguments_are_not_written():
    weight, inputs = weight_of(), correlated()
    moments = inputs.t() @ inputs
    before = weight.clone(), moments.clone()
    round_by_moments(weight, moments, group_size=64)
    assert torch.equal(weight, before[0])
    assert torch.equal(moments, before[1])


@pytest.mark.parametrize("moments", ["few samples", "zeros"])
def test_moments_without_an_inverse_still_round(moments):
    inputs = correlated()[:3] if moments == "few samples" else torch.zeros(3, 128)
    found = round_by_moments(weight_of(), inputs.t() @ inputs, group_size=64)
    assert (found.dequantize() - weight_of()).abs().max() < 1


def test_group_of_zeros_stays_zero():
    weight, inputs = weight_of(), correlated()
    weight[3, 64:] = 0
    found = round_by_moments(weight, inputs.t() @ inputs, group_size=64)
    assert not found.dequantize()[3, 64:].any()
    assert found.dequantize()[3, :64].any()


@pytest.mark.parametrize(
    "weight", [torch.ones(4), torch.ones(4, 100)], ids=["no matrix", "not divided"]
)
def test_weight_that_groups_do_not_divide_is_an_error(weight):
    with pytest.raises(OptionError, match="group_size 64") as error:
        round_by_moments(weight, torch.eye(100), group_size=64)
    assert error.value.code == "quantize-weight"


@pytest.mark.parametrize(
    "drift", [torch.eye(64), torch.full((128, 128), torch.inf)], ids=["shape", "not finite"]
)
def test_drift_that_does_not_fit_is_an_error(drift):
    with pytest.raises(OptionError, match=r"drift must be finite numbers of shape") as error:
        round_by_moments(weight_of(), torch.eye(128), group_size=64, drift=drift)
    assert error.value.code == "quantize-data"


@pytest.mark.parametrize(
    "moments", [torch.eye(64), torch.full((128, 128), torch.nan)], ids=["shape", "not finite"]
)
def test_moments_that_do_not_fit_are_an_error(moments):
    with pytest.raises(OptionError, match=r"finite numbers of shape \(128, 128\)") as error:
        round_by_moments(weight_of(), moments, group_size=64)
    assert error.value.code == "quantize-data"
