"""Reductions, sorting and softmax against eager."""

from __future__ import annotations

import pytest
import torch

aten = torch.ops.aten
FLOATS = [torch.float32, torch.bfloat16, torch.float16]

REDUCTIONS = {
    "x.sum()": lambda x: x.sum(),
    "x.sum(-1)": lambda x: x.sum(-1),
    "x.sum((0,2),keepdim=True)": lambda x: x.sum((0, 2), keepdim=True),
    "x.sum(-1)+vector": lambda x: x.sum(-1) + x[0, :, 0],
    "x.var(1)": lambda x: x.var(1),
    "aten.var.dim(x,-1,False)": lambda x: aten.var.dim(x, [-1], False),
    "aten.std.dim(x,1,True,True)": lambda x: aten.std.dim(x, [1], True, True),
    "x.mean()": lambda x: x.mean(),
    "x.mean(1,keepdim=True)": lambda x: x.mean(1, keepdim=True),
    "x.mean((-1,-2))": lambda x: x.mean((-1, -2)),
    "x.amax(1)": lambda x: x.amax(1),
    "x.amin((0,1),keepdim=True)": lambda x: x.amin((0, 1), keepdim=True),
    "x.max()": lambda x: x.max(),
    "x.min()": lambda x: x.min(),
    "x.max(1)[0]": lambda x: x.max(1)[0],
    "softmax(x,-1)": lambda x: torch.softmax(x, -1),
    "softmax(x,1)": lambda x: torch.softmax(x, 1),
    "log_softmax(x,-1)": lambda x: torch.log_softmax(x, -1),
    "logsumexp(x,(1,))": lambda x: torch.logsumexp(x, (1,)),
    "linalg.vector_norm(x,2,(-1,))": lambda x: torch.linalg.vector_norm(x, 2, (-1,)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reduction_equals_eager(lowers, dtype):
    lowers(REDUCTIONS, torch.randn(3, 4, 5).to(dtype))


def test_reduction_of_a_number_equals_eager(lowers):
    functions = {
        "sum": lambda x: x.sum(0),
        "vector_norm": lambda x: torch.linalg.vector_norm(x),
        "norm of order 1": lambda x: torch.linalg.vector_norm(x, 1, (0,), keepdim=True),
        "max": lambda x: x.max(0)[0],
        "softmax": lambda x: x.softmax(0),
        "cumsum": lambda x: x.cumsum(-1),
    }
    lowers(functions, torch.tensor(-2.0))


STATISTICS = {
    "x.var()": lambda x: x.var(),
    "x.var(-1,correction=0)": lambda x: x.var(-1, correction=0),
    "x.std((0,1),keepdim=True)": lambda x: x.std((0, 1), keepdim=True),
    "var_mean(x,1)": lambda x: torch.var_mean(x, 1),
    "linalg.vector_norm(x,1)": lambda x: torch.linalg.vector_norm(x, 1),
    "x.prod(1)": lambda x: x.prod(1),
    "x.cumsum(1)": lambda x: x.cumsum(1),
    "x.sum(dim=[])": lambda x: x.sum(dim=[]),
    "x.t().contiguous().sum(0)": lambda x: x.t().contiguous().sum(0),
}


def test_statistics_equal_eager(lowers):
    lowers(STATISTICS, torch.randn(3, 4))


OF_INTEGERS = {
    "x.sum()": lambda x: x.sum(),
    "x.sum(1)": lambda x: x.sum(1),
    "x.cumsum(0)": lambda x: x.cumsum(0),
    "x.amax(1)": lambda x: x.amax(1),
    "x.max(1)": lambda x: x.max(1),
    "x.min(0,keepdim=True)": lambda x: x.min(0, keepdim=True),
    "x.argmax(1)": lambda x: x.argmax(1),
    "x.argmin(0,keepdim=True)": lambda x: x.argmin(0, keepdim=True),
    "x.argmax()": lambda x: x.argmax(),
    "(x>3).any()": lambda x: (x > 3).any(),
    "(x>3).all(1)": lambda x: (x > 3).all(1),
    "(x>3).sum(1)": lambda x: (x > 3).sum(1),
}


def test_integer_reduction_equals_eager(lowers):
    lowers(OF_INTEGERS, torch.randint(0, 9, (4, 5)))


def test_first_of_equal_values_is_the_extreme(lowers):
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    lowers(lambda x: (x.argmax(1), x.argmin(1), x.max(1), x.min(1)), x)


@pytest.mark.parametrize("largest", [True, False])
def test_topk_equals_eager(lowers, largest):
    lowers(lambda x: torch.topk(x, 3, dim=1, largest=largest), torch.randn(4, 8))


@pytest.mark.parametrize("descending", [True, False])
def test_stable_sort_keeps_the_order_of_equals(lowers, descending):
    x = torch.tensor([[2.0, 1.0, 2.0, 1.0, 3.0]])
    lowers(lambda x: torch.sort(x, dim=1, descending=descending, stable=True), x)


def test_safe_softmax_gives_zero_for_dead_rows(lowers):
    x = torch.randn(3, 4)
    x[1] = float("-inf")
    lowers(lambda x: aten._safe_softmax(x, -1), x)


@pytest.mark.parametrize("end", [float("-inf"), float("inf")])
def test_extremes_of_infinite_rows_stay_infinite(lowers, end):
    x = torch.randn(3, 4)
    x[1] = end
    lowers(lambda x: (x.amax(1), x.amin(1), x.max(1)[0], x.min(1)[0]), x)


def test_softmax_gradients_equal_eager(lowers):
    y = torch.softmax(torch.randn(3, 5), -1)
    grad = torch.randn(3, 5)
    lowers(lambda g, y: aten._softmax_backward_data(g, y, -1, torch.float32), grad, y)
    lowers(lambda g, y: aten._log_softmax_backward_data(g, y, -1, torch.float32), grad, y.log())


def test_dynamic_reductions_serve_other_sizes(lowers):
    lowers(
        lambda x: (torch.softmax(x, -1), x.mean(1)),
        torch.randn(2, 3, 4),
        dynamic=True,
        run_on=(torch.randn(5, 6, 7),),
    )


def test_histogram_counts_as_eager(lowers):
    # Both ends, values outside, and none in the third bin.
    values = torch.tensor([0.0, 3, 1, 1, 4, -1, 3, 0])
    assert torch.histc(values, 4, 0, 3).tolist() == [2, 2, 0, 2]
    lowers(lambda x: torch.histc(x, 4, 0, 3), values)
    lowers(lambda x: torch.histc(x, 7, -1.5, 5), torch.linspace(-3, 6, 50))


def test_histogram_of_integers_on_npu_equals_that_of_floats(compiled):
    # The CPU counts floats alone.
    values = torch.tensor([0, 3, 1, 1, 4, -1, 3, 0], device="npu")
    weights = torch.ones(4, device="npu")
    fast = compiled(lambda x: torch.histc(x, 4, 0, 3) * weights)
    assert fast(values).tolist() == [2, 2, 0, 2]
    assert fast.eager_ops == []


def test_histogram_between_ends_from_data_runs_eagerly(compiled, close):
    x = torch.randn(5)
    fast = compiled(lambda x: torch.histc(x, 4) + torch.tanh(x).sum())
    close(fast(x), torch.histc(x, 4) + torch.tanh(x).sum())
    assert fast.eager_ops == ["aten.histc.default"]
