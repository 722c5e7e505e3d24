"""Results of torch's host kernels for a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch import fx

from npu_compiler.verification.reference import Reference, standing_in

CALLS: list[tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = [
    (torch.ops.aten.conv2d.default, [(1, 8, 6, 6), (4, 8, 3, 3), (4,)]),
    (torch.ops.aten.addmm.default, [(5,), (3, 64), (64, 5)]),
    (torch.ops.aten.mm.default, [(3, 64), (64, 5)]),
]


@pytest.mark.parametrize("call, shapes", CALLS)
def test_sums_of_float16_products_are_rounded_once(
    call: Callable[..., torch.Tensor], shapes: list[tuple[int, ...]]
) -> None:
    graph, inputs = fx.Graph(), [torch.randn(shape).half() for shape in shapes]
    read = tuple(graph.placeholder(f"x{place}") for place in range(len(shapes)))
    graph.output(graph.call_function(call, read))
    module = fx.GraphModule(torch.nn.Module(), graph)
    (result,) = Reference(module, inputs, precision="float16").results()
    assert result.dtype is torch.float16
    assert torch.equal(result, call(*(value.float() for value in inputs)).half())


def test_a_view_takes_a_value_whose_strides_are_not_those_that_were_traced() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    turned = graph.call_function(torch.ops.aten.transpose.int, (x, 1, 2))
    graph.output(graph.call_function(torch.ops.aten.view.default, (turned, [2, -1])))
    values = torch.randn(2, 3, 4)
    (result,) = Reference(fx.GraphModule(torch.nn.Module(), graph), [values]).results()
    assert torch.equal(result, values.transpose(1, 2).reshape(2, -1))


def test_a_sort_keeps_equals_in_order_as_programs_do() -> None:
    graph = fx.Graph()
    pair = graph.call_function(torch.ops.aten.sort.default, (graph.placeholder("x"),))
    graph.output(graph.call_function(operator.getitem, (pair, 1)))
    values = torch.arange(98.0) % 2
    (result,) = Reference(fx.GraphModule(torch.nn.Module(), graph), [values]).results()
    assert torch.equal(result, torch.sort(values, stable=True)[1])


@pytest.mark.parametrize("shape", [(1,), (2, 1), (1, 1)])
def test_torchs_result_stands_in_for_one_of_any_shape(shape: tuple[int, ...]) -> None:
    right = torch.full((1, 1), 3.0)
    result = standing_in(right, torch.zeros(shape))
    assert torch.equal(result, right)
    assert result.data_ptr() != right.data_ptr()
