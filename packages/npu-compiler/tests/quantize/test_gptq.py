"""Rounding a matrix by the moments of its inputs: its gain, its grids, and its refusals."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest
import torch

from npu_compiler.errors import OptionError
from npu_compiler.openvino_core import openvino_core
from npu_compiler.quantize import gptq, quantize_weight
from npu_compiler.quantize.gptq import SegmentedModel, compress_by_moments, round_by_moments


def correlated(columns=128, rank=16, count=512):
    """Inputs near a subspace, as in language models, with some large channels."""
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
    now = 0.9 * before + 0.3 * noise  # possible effect of earlier rounded layers on its inputs
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
    with pytest.raises(OptionError, match=r"`drift` must be finite, of shape") as error:
        round_by_moments(weight_of(), torch.eye(128), group_size=64, drift=drift)
    assert error.value.code == "quantize-data"


@pytest.mark.parametrize(
    "moments", [torch.eye(64), torch.full((128, 128), torch.nan)], ids=["shape", "not finite"]
)
def test_moments_that_do_not_fit_are_an_error(moments):
    with pytest.raises(OptionError, match=r"must be finite, of shape \(128, 128\)") as error:
        round_by_moments(weight_of(), moments, group_size=64)
    assert error.value.code == "quantize-data"


def residual_model(size=-1):
    """Two products in a row, each with a residual path; the shape of the second is computed."""
    rng = np.random.default_rng(0)
    x = ops.parameter([size, 4], ov.Type.f32)
    weights = [ops.constant(rng.standard_normal((4, 4), np.float32)) for _ in range(3)]
    first = ops.matmul(x, weights[0], False, True)
    beside = ops.matmul(x, weights[1], False, True)
    joined = ops.add(ops.tanh(first), ops.multiply(x, beside))
    shaped = ops.reshape(joined, ops.shape_of(x), False)
    second = ops.matmul(shaped, weights[2], False, True)
    return ov.Model([ops.add(second, x)], [x]), [first, beside, second]


def values_at(output, model, samples):
    found = openvino_core().compile_model(
        ov.Model([output], model.get_parameters()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return [found(sample)[0] for sample in samples]


def samples(*sizes):
    rng = np.random.default_rng(1)
    return [[rng.standard_normal((size, 4), np.float32)] for size in sizes]


@pytest.mark.parametrize("size, sizes", [(3, (3, 3)), (-1, (2, 5))], ids=["fixed", "varying"])
def test_values_are_those_of_the_whole_model(size, sizes):
    model, products = residual_model(size)
    calls = samples(*sizes)
    expected = values_at(products[2].input_value(0), model, calls)
    running = SegmentedModel(model, calls)
    running.advance(products[0].input(0))
    found = running.advance(products[2].input(0))
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


def test_products_of_one_input_get_one_list():
    model, products = residual_model()
    calls = samples(2, 5)
    running = SegmentedModel(model, calls)
    found = running.advance(products[0].input(0))
    assert found is running.advance(products[1].input(0))
    assert all(np.array_equal(left, right) for left, (right,) in zip(found, calls, strict=True))


def test_weight_that_changes_counts_for_what_comes_after():
    calls = samples(3)
    changed = ops.constant(np.eye(4, dtype=np.float32))
    model, products = residual_model()
    products[0].input(1).replace_source_output(changed.output(0))
    expected = values_at(products[2].input_value(0), model, calls)
    model, products = residual_model()
    running = SegmentedModel(model, calls)
    running.advance(products[0].input(0))
    products[0].input(1).replace_source_output(changed.output(0))
    np.testing.assert_allclose(running.advance(products[2].input(0))[0], expected[0], rtol=1e-6)


def test_values_that_nothing_ahead_reads_are_dropped():
    model, products = residual_model()
    running = SegmentedModel(model, samples(3))
    running.advance(products[2].input(0))
    ahead = {node.get_friendly_name() for node in model.get_parameters()}
    kept = {node.get_friendly_name() for node in running._parameters.values()}
    assert len(kept) == 2  # the input, which is added at the end, and the second product's
    assert ahead < kept


def constant(*shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return ops.constant(values / np.sqrt(shape[1]).astype(np.float32))


def inputs(count=16):
    rng = np.random.default_rng(9)
    basis = rng.standard_normal((8, 64), np.float32)
    noise = rng.standard_normal((count, 16, 64), np.float32)
    return [[x] for x in rng.standard_normal((count, 16, 8), np.float32) @ basis + 0.1 * noise]


def named(model):
    """The model with names that are its nodes' own."""
    for index, node in enumerate(model.get_ordered_ops()):
        node.set_friendly_name(f"node {index}")
    return model


def chain(*, transpose_a=False, transpose_b=True):
    """Three products, the first by its arguments."""
    x = ops.parameter([64, 16] if transpose_a else [16, 64], ov.Type.f32)
    first = ops.matmul(x, constant(64, 64), transpose_a, transpose_b)
    second = ops.matmul(ops.tanh(first), constant(64, 64, seed=1), False, True)
    last = ops.matmul(ops.tanh(second), constant(32, 64, seed=2), False, True)
    return named(ov.Model([last], [x]))


def integer_types(model):
    """Element type and shape of each weight's integers, in the order of the model."""
    return [
        (node.get_output_element_type(0).get_type_name(), tuple(node.get_output_shape(0)))
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Constant"
        and node.get_friendly_name().endswith(("/u4", "/i4", "/u8", "/i8"))
    ]


def run(model, calls):
    program = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.concatenate([program(call)[0] for call in calls])


def test_last_product_is_int8_and_the_others_int4():
    model = chain()
    compress_by_moments(model, inputs(), group_size=32)
    assert sorted(integer_types(model)) == [("u4", (64, 2, 32))] * 2 + [("u8", (32, 64))]


def test_symmetric_weights_have_no_zero_points():
    model = chain()
    compress_by_moments(model, inputs(), group_size=64, symmetric=True)
    assert {kind for kind, _ in integer_types(model)} == {"i4", "i8"}
    assert "Subtract" not in {node.get_type_name() for node in model.get_ops()}


def test_only_product_is_int4():
    x = ops.parameter([16, 64], ov.Type.f32)
    model = ov.Model([ops.matmul(x, constant(64, 64), False, True)], [x])
    compress_by_moments(model, inputs(), group_size=64)
    assert [kind for kind, _ in integer_types(model)] == ["u4"]


def test_row_that_no_group_divides_is_int8():
    x = ops.parameter([16, 80], ov.Type.f32)
    first = ops.matmul(x, constant(64, 80), False, True)
    model = ov.Model([ops.matmul(first, constant(8, 64), False, True)], [x])
    compress_by_moments(model, [[np.ones((16, 80), np.float32)]], group_size=64)
    assert [kind for kind, _ in integer_types(model)] == ["u8", "u8"]


def test_embedding_is_int8():
    ids = ops.parameter([16], ov.Type.i64)
    rows = ops.gather(constant(100, 64), ids, ops.constant(0, ov.Type.i64))
    hidden = ops.tanh(ops.matmul(rows, constant(64, 64), False, True))
    model = ov.Model([ops.matmul(hidden, constant(100, 64), False, True)], [ids])
    compress_by_moments(model, [[np.arange(16)]], group_size=64)
    assert sorted(integer_types(model)) == [("u4", (64, 64))] + [("u8", (100, 64))] * 2


def test_small_table_keeps_its_precision():
    ids = ops.parameter([16], ov.Type.i64)
    rows = ops.gather(constant(10, 64), ids, ops.constant(0, ov.Type.i64))
    model = ov.Model([ops.matmul(rows, constant(64, 64), False, True)], [ids])
    compress_by_moments(model, [[np.arange(16) % 10]], group_size=64)
    assert integer_types(model) == [("u4", (64, 64))]


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_layouts_of_a_product_compute_the_same(transpose_a, transpose_b):
    model = chain(transpose_a=transpose_a, transpose_b=transpose_b)
    calls = inputs()
    calls = [[call.T.copy()] for (call,) in calls] if transpose_a else calls
    expected = run(model, calls)
    compress_by_moments(model, calls, group_size=32)
    found = run(model, calls)
    assert np.linalg.norm(found - expected) < 0.2 * np.linalg.norm(expected)


def test_weight_of_two_products_is_replaced_in_both():
    x = ops.parameter([16, 64], ov.Type.f32)
    shared = constant(64, 64)
    first = ops.tanh(ops.matmul(x, shared, False, True))
    second = ops.tanh(ops.matmul(first, shared, False, True))
    model = ov.Model([ops.matmul(second, constant(32, 64), False, True)], [x])
    calls = inputs()
    expected = run(model, calls)
    compress_by_moments(model, calls, group_size=32)
    assert sorted(kind for kind, _ in integer_types(model)) == ["u4", "u8"]
    found = run(model, calls)
    assert np.linalg.norm(found - expected) < 0.5 * np.linalg.norm(expected)


def test_later_products_make_up_for_errors_of_earlier_ones(monkeypatch):
    x = ops.parameter([16, 64], ov.Type.f32)
    hidden = x.output(0)
    for layer in range(6):  # errors add up along the residual path
        hidden = ops.add(
            hidden, ops.matmul(ops.tanh(hidden), constant(64, 64, seed=layer), False, True)
        ).output(0)
    model = named(ov.Model([hidden], [x]))
    other, calls = model.clone(), inputs()
    expected = run(model, calls)
    compress_by_moments(model, calls, group_size=64)

    rounded = gptq._rounded
    monkeypatch.setattr(gptq, "_rounded", lambda *args: rounded(*args[:-1], None))
    compress_by_moments(other, calls, group_size=64)
    error = np.linalg.norm(run(model, calls) - expected)
    assert error < 0.95 * np.linalg.norm(run(other, calls) - expected)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, monkeypatch):
    model, calls = chain(), inputs()
    whole, other = model.clone(), model.clone()
    compress_by_moments(whole, calls, group_size=32)

    def interrupt(done, total):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress_by_moments(model, calls, group_size=32, kept=tmp_path, on_progress=interrupt)
    (tmp_path / "0001.npz").write_bytes(b"cut off")
    rounded, weights, told = gptq._rounded, [], []
    monkeypatch.setattr(gptq, "_rounded", lambda *args: weights.append(args[0]) or rounded(*args))
    compress_by_moments(
        other, calls, group_size=32, kept=tmp_path, on_progress=lambda *one: told.append(one)
    )
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert len(weights) == 1
    np.testing.assert_array_equal(run(other, calls), run(whole, calls))


def test_by_moments_two_runs_are_equal():
    model = chain()
    other = model.clone()
    calls = inputs()
    compress_by_moments(model, calls, group_size=32)
    compress_by_moments(other, calls, group_size=32)
    np.testing.assert_array_equal(run(model, calls), run(other, calls))
