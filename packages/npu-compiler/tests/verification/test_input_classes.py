"""Comparing again: for inputs of a new class, after some time, and within the budget."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from npu_compiler.errors import WrongResultWarning
from npu_compiler.verification.input_classes import InputClasses


def classes(*values: torch.Tensor) -> InputClasses:
    return InputClasses(dict(enumerate(values)))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 7e4, -1e20], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_new_class_is_due_once(number, dtype):
    x = torch.ones(4, dtype=dtype)
    found = classes(x)
    assert not found.is_due([x])
    special = x.clone()
    special[2] = number
    assert found.is_due([special])
    assert not found.is_due([special])
    assert not found.is_due([x * 100])


def test_magnitudes_of_float16_are_classes():
    x = torch.ones(4).half()
    found = classes(x)
    due = [found.is_due([x * size]) for size in (10, 100, 200, 1000, 40000, 5000)]
    assert due == [False, True, False, True, True, False]


def test_compared_inputs_are_known():
    found = classes(torch.ones(2))
    found.note([torch.tensor([1.0, math.nan])])
    assert not found.is_due([torch.tensor([math.nan, 1.0])])


def test_integers_and_empty_inputs_have_one_class():
    found = classes(torch.ones(2, dtype=torch.int64), torch.empty(0))
    assert not found.is_due([torch.full((2,), 1 << 40), torch.empty(0)])


def test_first_calls_are_looked_at_and_later_ones_by_the_time_it_takes():
    found = classes(torch.ones(2))
    for _ in range(16):
        found.is_due([torch.ones(2)])
        found.spent(look_s=1e-5, run_s=1e-5)
        assert found.left == 0
    found.is_due([torch.ones(2)])
    found.spent(look_s=1e-5, run_s=1e-5)
    assert found.left == pytest.approx(50, abs=1)
    found.is_due([torch.ones(2)])
    found.spent(look_s=1e-5, run_s=1.0)
    assert found.left == 0


def test_comparisons_come_again_within_a_share_of_the_time():
    found = classes(torch.ones(2))
    found.compared(1.0)
    due = []
    for _ in range(300):
        due.append(found.is_due([torch.ones(2)]))
        found.spent(look_s=0.0, run_s=1.0)
    assert [index for index, one in enumerate(due) if one] == [26, 251]


@pytest.mark.filterwarnings("ignore::npu_compiler.errors.WrongResultWarning")
@pytest.mark.parametrize("target", ["openvino", "kernels"])
def test_layer_norm_of_numbers_whose_squares_overflow(compiled, target):
    fast = compiled(lambda x: F.layer_norm(x, (3,)), options={"target": target})
    with torch.no_grad():
        fast(torch.randn(2, 3))
        x = torch.tensor([[1e20, 1, 2], [1e-30, 0, 0]])
        for _ in range(2):
            result = fast(x)
            assert torch.equal(result.isnan(), F.layer_norm(x, (3,)).isnan())


def test_float16_that_overflows_between_is_noticed_in_a_later_call(compiled):
    fast = compiled(lambda x: (x * 2) / 2, options={"target": "openvino"})
    with torch.no_grad():
        fast(torch.ones(4).half())
        x = torch.full((4,), 4.5e4).half()
        with pytest.warns(WrongResultWarning):
            assert fast(x).isinf().all()
        assert fast(x).isinf().all()


def test_graph_from_an_earlier_process_is_compared_on_a_new_class(compiled):
    def function(x):
        return (x * 2) / 2 + 0.0

    x = torch.full((4,), 4.5e4).half()
    for _ in range(2):
        torch._dynamo.reset()
        fast = compiled(function, options={"target": "openvino"})
        with torch.no_grad():
            fast(torch.ones(4).half())
    with torch.no_grad(), pytest.warns(WrongResultWarning):
        assert fast(x).isinf().all()
