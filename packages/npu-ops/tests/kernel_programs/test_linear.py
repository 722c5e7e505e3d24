"""Products of rows with packed weights, in each set of kernels."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_ops.kernel_programs.execution import Execution
from npu_ops.kernel_programs.program import Columns
from npu_ops.kernel_programs.reference import ACTIVATIONS, ReferenceExecution
from npu_ops.kernel_programs.weights import interleave, pack, unpack

from .conftest import (
    at_the_end_of_memory,
    in_levels,
    linear_program,
    one_sequence,
    rounded,
    run,
    table_program,
)

KINDS = ["float32", "bfloat16", "float16", "int8", "int4"]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_products_are_those_of_torch(kernel_set, data):
    kind = data.draw(st.sampled_from(KINDS))
    group = data.draw(st.sampled_from([32, 64, 128]))
    inputs = (
        group * data.draw(st.integers(1, 4)) if kind == "int4" else data.draw(st.integers(1, 200))
    )
    gated = data.draw(st.booleans())
    outputs = 32 * data.draw(st.integers(1, 3)) if gated else data.draw(st.integers(1, 100))
    rows = data.draw(st.integers(1, 27) | st.sampled_from([64, 97, 130]))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs) / inputs**0.5
    if kind in ("int8", "int4"):
        x = in_levels(x)
    fields = {
        "gated": gated,
        "activation": data.draw(st.sampled_from([None, *ACTIVATIONS])),
        "factor": data.draw(st.sampled_from([1.0, 0.5])),
        "soft_cap": data.draw(st.sampled_from([None, 3.0])),
    }
    if data.draw(st.booleans()):
        fields["bias"] = "bias"
    columns = outputs // 2 if gated else outputs
    if columns <= inputs and data.draw(st.booleans()):
        fields["residual"] = Columns(0, inputs - columns, columns)
    if gated:
        weight = interleave(*weight.chunk(2))
    packed = rounded(weight, kind, group)
    if data.draw(st.booleans()):
        packed = replace(packed, zeros=None)
    program, weights = linear_program(x, packed, **fields)
    weights["bias"] = torch.randn(outputs)
    found = run(program, weights, kernel_set)
    expected = ReferenceExecution(program, weights).step(one_sequence(rows))
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("factor", [1e-25, 1.0, 1e25])
def test_inputs_are_rounded_to_the_nearest_level(kernel_set, kind, factor, generator):
    x = torch.randn(70, 160, generator=generator) * factor
    x[3, :64] = 0
    weight = rounded(torch.randn(33, 160, generator=generator), kind, 32)
    program, weights = linear_program(x, weight)
    error = (run(program, weights, kernel_set) - x @ unpack(weight).T).abs()
    slabs = torch.nn.functional.pad(x, (0, 32)).view(70, 3, 64)
    levels = slabs.abs().amax(-1).repeat_interleave(64, 1)[:, :160] / 127
    most = levels @ unpack(weight).abs().T / 2
    assert (error <= most * 1.001).all()
    assert (error.mean(0) < most.mean(0) / 4).all()  # they cancel, as some are above and some below


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_the_same_in_any_company(kernel_set, kind, gated, threads, generator):
    """Bit for bit, however many rows there are and however threads share the outputs."""
    x = torch.randn(97, 160, generator=generator)
    weight = rounded(torch.randn(96, 160, generator=generator), kind, 32)
    how = {"gated": gated, "activation": "silu", "bias": "bias"}
    program, weights = linear_program(x, weight, **how)
    weights["bias"] = torch.randn(96, generator=generator)
    execution = Execution(program, weights, cache="float32", kernel_set=kernel_set)
    execution.reserve(32)
    together = execution.step(one_sequence(97))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count in range(1, 15):
            rows = replace(one_sequence(count), tokens=torch.arange(97 - count, 97))
            assert torch.equal(execution.step(rows), together[97 - count :]), count
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_products_of_extreme_integers_are_exact(kernel_set, kind):
    """No sum of bytes is cut off: greatest weights and inputs of either sign."""
    signs = torch.tensor([1.0, -1.0]).repeat_interleave(128)
    x = torch.stack([torch.ones(256), -torch.ones(256), signs, -signs])
    weight = rounded(torch.ones(32, 256), kind, 64)
    greatest = torch.full_like(weight.data, 255)
    for zero, data in [(0, greatest), (15 if kind == "int4" else 255, torch.zeros_like(greatest))]:
        extreme = replace(weight, data=data, zeros=torch.full_like(weight.zeros, zero))
        program, weights = linear_program(x, extreme)
        found = run(program, weights, kernel_set)
        torch.testing.assert_close(found, x @ unpack(extreme).T, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_is_its_row_of_the_weight(kernel_set, kind, generator):
    table = rounded(torch.randn(37, 96, generator=generator), kind, 32)
    program = table_program(table, scale=0.5)
    assert torch.equal(run(program, {"table": table}, kernel_set), unpack(table) * 0.5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", [1, 16, 39, 48])
def test_nothing_is_read_behind_a_weight(kernel_set, kind, outputs, generator):
    x = torch.randn(9, 96, generator=generator)
    weight = rounded(torch.randn(outputs, 96, generator=generator), kind, 32)
    bias = at_the_end_of_memory(torch.randn(outputs, generator=generator))
    program, weights = linear_program(x, weight, bias="bias")
    expected = run(program, {**weights, "bias": bias.clone()}, kernel_set)
    weights |= {"bias": bias, "weight": at_the_end_of_memory(weight)}
    assert torch.equal(run(program, weights, kernel_set), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_not_hidden(kernel_set, kind, gated, bad, generator):
    x = torch.randn(3, 128, generator=generator)
    x[1, 70] = bad
    weight = rounded(torch.randn(32, 128, generator=generator), kind, 64)
    program, weights = linear_program(x, weight, gated=gated)
    found = run(program, weights, kernel_set)
    assert not found[1].isfinite().any()
    assert found[0].isfinite().all()
    assert found[2].isfinite().all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_small_and_large_numbers(kernel_set, activation):
    steps = torch.linspace(-12, 12, 401)
    values = torch.cat([steps, steps / 100, torch.tensor([0.0, 1e-30, 89.0, 200.0, 1e4, 1e30])])
    values = torch.cat([values, -values])
    program, weights = linear_program(
        torch.ones(1, 1), pack(values[:, None], "float32"), activation=activation
    )
    found = run(program, weights, kernel_set)[0]
    expected = ACTIVATIONS[activation](values.double()).float()
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
