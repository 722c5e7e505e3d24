"""Products of rows with packed weights, in each set of kernels."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_ops.kernel_programs.execution import Execution
from npu_ops.kernel_programs.reference import ACTIVATIONS, ReferenceExecution
from npu_ops.kernel_programs.weights import interleave

from .conftest import linear_program, one_sequence, quantized, rounded

KINDS = ["float32", "bfloat16", "float16", "int8", "int4"]


def expected_of(program, weights, x, kind):
    """What torch computes with the same weights, and integers where the kernels have them."""
    given = quantized(x) if kind in ("int8", "int4") else x
    reference = ReferenceExecution(program, {**weights, "x": given})
    return reference.step(one_sequence(len(x)))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
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
    rows = data.draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 25, 64, 130]))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs) / inputs**0.5
    fields = {
        "gated": gated,
        "activation": data.draw(st.sampled_from([None, *ACTIVATIONS])),
        "factor": data.draw(st.sampled_from([1.0, 0.5])),
        "soft_cap": data.draw(st.sampled_from([None, 3.0])),
    }
    if data.draw(st.booleans()):
        fields["bias"] = "bias"
    if gated:
        weight = interleave(*weight.chunk(2))
    program, weights = linear_program(x, rounded(weight, kind, group), **fields)
    weights["bias"] = torch.randn(outputs)
    execution = Execution(program, weights, cache="float32", kernel_set=kernel_set)
    execution.reserve(32)
    found = execution.step(one_sequence(rows))
    expected = expected_of(program, weights, x, kind)
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_in_any_company(kernel_set, kind, generator):
    x = torch.randn(37, 192, generator=generator)
    weight = rounded(torch.randn(80, 192, generator=generator), kind, 64)
    program, weights = linear_program(x, weight)
    execution = Execution(program, weights, cache="float32", kernel_set=kernel_set)
    execution.reserve(32)
    together = execution.step(one_sequence(37))
    for row in (0, 5, 36):
        rows = one_sequence(1)
        alone = execution.step(type(rows)(**{**vars(rows), "tokens": torch.tensor([row])}))
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_not_hidden(kernel_set, kind, bad, generator):
    x = torch.randn(3, 128, generator=generator)
    x[1, 70] = bad
    program, weights = linear_program(
        x, rounded(torch.randn(20, 128, generator=generator), kind, 64)
    )
    execution = Execution(program, weights, cache="float32", kernel_set=kernel_set)
    execution.reserve(32)
    found = execution.step(one_sequence(3))
    assert not found[1].isfinite().any()
    assert found[0].isfinite().all()
    assert found[2].isfinite().all()
