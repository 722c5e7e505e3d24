"""Intervals of integers: each holds for random inputs, and the ones that matter are known."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.graph.ranges import Interval, integer_ranges

IDS = torch.tensor([[3, -7, 1 << 40], [5, 0, -(1 << 50)]])
WIDE = torch.iinfo(torch.int64)

KNOWN = {
    "arange": (lambda x: torch.arange(7), 0, 6),
    "arange with a step": (lambda x: torch.arange(10, 2, -3), 3, 10),
    "shifted and scaled": (lambda x: torch.arange(7) * 3 - 4, -4, 14),
    "clamp": (lambda x: x.clamp(-2, 9), -2, 9),
    "clamp on one side": (lambda x: x.clamp(min=4), 4, WIDE.max),
    "remainder": (lambda x: x % 5, 0, 4),
    "floor division": (lambda x: torch.arange(-5, 9) // 2, -3, 4),
    "comparison": (lambda x: (x > 3).long() + 1, 1, 2),
    "where": (lambda x: torch.where(x > 3, 2, -1), -1, 2),
    "masked_fill": (lambda x: torch.arange(3).masked_fill(x > 3, 9), 0, 9),
    "mask times value": (lambda x: torch.arange(2, 5) * (x > 3), 0, 4),
    "positions of a mask": (lambda x: (x != 1).long().cumsum(1) * (x != 1) + 1, 1, 4),
    "argmax": (lambda x: x.argmax(1), 0, 2),
    "argmax over all": (lambda x: x.argmax(), 0, 5),
    "topk": (lambda x: x.float().topk(2, 1).indices, 0, 2),
    "sort": (lambda x: x.sort(0).indices, 0, 1),
    "cat": (lambda x: torch.cat([torch.arange(3), torch.full((2,), 8)]), 0, 8),
    "views": (lambda x: x.clamp(0, 3).t()[1:].reshape(-1).flip(0), 0, 3),
    "narrow type": (lambda x: x.to(torch.uint8).long(), 0, 255),
    "bitwise": (lambda x: x & 15, 0, 15),
    "unknown input": (lambda x: x, WIDE.min, WIDE.max),
    "may wrap around": (lambda x: x + 1, WIDE.min, WIDE.max),
    "cast of a float": (lambda x: x.float().long(), WIDE.min, WIDE.max),
    "size": (lambda x: torch.arange(4) + x.shape[1], 3, 6),
}


@pytest.mark.parametrize("name", KNOWN)
def test_bounds_are_known_and_hold(name):
    function, low, high = KNOWN[name]
    module = make_fx(function, tracing_mode="fake")(IDS)
    ranges = integer_ranges(module.graph)
    (result,) = (node.args[0] for node in module.graph.nodes if node.op == "output")
    found = ranges[result]
    assert (found.low, found.high) == (low, high)
    values = function(IDS)
    assert found.is_within(WIDE.min, WIDE.max)
    assert low <= int(values.min())
    assert int(values.max()) <= high


def _symbolic(function, *inputs):
    module = make_fx(function, tracing_mode="symbolic")(*inputs)
    ranges = integer_ranges(module.graph)
    (result,) = (node.args[0] for node in module.graph.nodes if node.op == "output")
    return ranges[result], next(iter(module.graph.nodes)).meta["val"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.arange(x.shape[1]),
        lambda x: torch.arange(x.shape[1])[None].expand(2, -1),
        lambda x: torch.arange(x.shape[1] + 2) - 2,
        lambda x: x.argmax(1),
        lambda x: torch.arange(9).clamp(max=x.shape[1] - 1),
        lambda x: torch.where(x[0] > 0, torch.arange(x.shape[1]), 0),
    ],
    ids=["arange", "expanded", "shifted", "argmax", "clamped", "chosen"],
)
def test_values_below_a_symbolic_size_are_known_to_be(function):
    found, x = _symbolic(function, torch.randn(4, 7))
    assert found.is_below(x.shape[1])
    assert not found.is_below(x.shape[0])


def test_one_more_is_not_below_a_symbolic_size():
    found, x = _symbolic(lambda x: torch.arange(x.shape[1]) + 1, torch.randn(4, 7))
    assert not found.is_below(x.shape[1])
    assert found.is_below(x.shape[1] + 1)


def test_a_part_without_elements_bounds_nothing():
    found, x = _symbolic(
        lambda x: torch.cat([torch.arange(x.shape[1] - 2), torch.zeros(1, dtype=torch.int64)]),
        torch.randn(4, 7),
    )
    assert not found.is_below(x.shape[1] - 2)


def test_constants_count_with_their_values():
    module = make_fx(lambda table, x: table[x], tracing_mode="fake")(torch.tensor([4, 9]), IDS % 2)
    ranges = integer_ranges(module.graph, {"table_1": torch.tensor([4, 9])})
    found = [ranges[node] for node in module.graph.nodes if node.op == "call_function"]
    assert found[-1] == Interval(4, 9)


def test_in_32_bits_what_may_overflow_may_be_anything():
    module = make_fx(lambda x: (x % (1 << 40)) // (1 << 38), tracing_mode="fake")(IDS)
    (result,) = (node.args[0] for node in module.graph.nodes if node.op == "output")
    assert integer_ranges(module.graph)[result] == Interval(0, 3)
    narrow = integer_ranges(module.graph, int64_bits=32)
    assert not narrow[result].is_within(0, 3)


def test_a_one_hot_index_of_labels_is_unknown_and_its_result_is_known():
    module = make_fx(lambda x: F.one_hot(x % 4, 4), tracing_mode="fake")(IDS)
    (result,) = (node.args[0] for node in module.graph.nodes if node.op == "output")
    assert integer_ranges(module.graph)[result].is_within(0, 1)
