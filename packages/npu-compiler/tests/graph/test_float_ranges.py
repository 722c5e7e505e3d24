"""Bounds of floats that become integers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.graph.float_ranges import cast_bounds
from npu_compiler.graph.ranges import Interval

X = torch.arange(8.0)
CASES = {
    "clamp": (lambda x: (x.clamp(0, 1) * 255).long(), X, 0, 255),
    "clamp to one side": (lambda x: (x.sigmoid().clamp_max(0.5) * 10).long(), X, 0, 5),
    "sigmoid": (lambda x: (x.sigmoid() * 8 - 4).floor().long(), X, -5, 5),
    "tanh": (lambda x: (-x.tanh() / 0.5).round().long(), X, -3, 3),
    "integers": (lambda x: (x.float() / 4 + 1).to(torch.int32), X.long(), 1, 3),
    "logarithm": (lambda x: torch.log(x.float()).long(), X.long(), -104, math.ceil(math.log(7))),
    "choice": (lambda x: torch.where(x > 3, x.sigmoid(), x.cos() * 2).long(), X, -2, 2),
}


def bounds(function, example):
    graph = make_fx(function, tracing_mode="fake")(example).graph
    cast = next(reversed([n for n in graph.nodes if n.op == "call_function"]))
    return cast_bounds(cast, lambda node: Interval(0, 7))


@pytest.mark.parametrize("name", CASES)
def test_bounds_hold_and_are_near(name):
    function, example, low, high = CASES[name]
    found = bounds(function, example)
    assert found is not None
    assert low - 2 <= found[0] <= low
    assert high <= found[1] <= high + 2


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.long(), id="input"),
        pytest.param(lambda x: x.exp().long(), id="exponential"),
        pytest.param(lambda x: x.clamp_min(0).long(), id="one side"),
        pytest.param(lambda x: (x.sigmoid() / x.cos()).long(), id="quotient"),
        pytest.param(lambda x: x.sigmoid() + 1, id="no cast"),
    ],
)
def test_what_may_be_anything_has_no_bounds(function):
    assert bounds(function, X) is None
