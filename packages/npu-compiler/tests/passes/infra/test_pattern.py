"""Patterns: names, orders of arguments, use outside of a match."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.passes.infra.pattern import anything, call, either, find, number, optional

aten = torch.ops.aten
SQUARE = call(aten.mul.Tensor, anything("x"), anything("x"))
SIN_PLUS = call(
    aten.add.Tensor, call(aten.sin.default, anything("x")), anything("y"), commutes=True
)


def last(function, *inputs):
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    return [node for node in graph.nodes if node.op == "call_function"][-1]


def test_one_name_is_one_value():
    x, y = torch.randn(2), torch.randn(2)
    assert find(SQUARE, last(lambda x: x * x, x))
    assert find(SQUARE, last(lambda x, y: x * y, x, y)) is None


def test_arguments_may_stand_in_either_order():
    x, y = torch.randn(2), torch.randn(2)
    for function in (lambda x, y: x.sin() + y, lambda x, y: y + x.sin()):
        found = find(SIN_PLUS, last(function, x, y))
        assert found
        assert found["y"].name == "y_1"


def test_inner_call_that_is_used_outside_voids_the_match():
    node = last(lambda x, y: (s := x.sin(), s + y)[1] * s, torch.randn(2), torch.randn(2))
    assert find(SIN_PLUS, node.args[0]) is None


def test_view_may_be_used_outside():
    pattern = call(aten.sin.default, call(aten.view.default, anything("x"), anything()))
    node = last(lambda x: (v := x.view(2, 2), v.cos(), v.sin())[2], torch.randn(4))
    assert find(pattern, node)


def test_kept_op_voids_the_match():
    node = last(lambda x, y: x.sin() + y, torch.randn(2), torch.randn(2))
    sine = torch.ops.aten.sin.default
    assert find(SIN_PLUS, node, is_kept=lambda part: part.target is sine) is None


def test_keyword_arguments_void_the_match_unless_allowed():
    node = last(lambda x, y: torch.add(x.sin(), y, alpha=2), torch.randn(2), torch.randn(2))
    assert find(SIN_PLUS, node) is None
    pattern = call(aten.add.Tensor, anything(), anything(), keywords=True)
    assert find(pattern, node)


def test_options_are_tried_in_order():
    pattern = either(call(aten.cos.default, anything()), call(aten.sin.default, anything("x")))
    assert find(pattern, last(lambda x: x.sin(), torch.randn(2)))["x"].name == "x_1"


def test_cast_may_be_left_out():
    pattern = optional(aten._to_copy.default, call(aten.sin.default, anything()))
    assert find(pattern, last(lambda x: x.sin(), torch.randn(2)))
    assert find(pattern, last(lambda x: x.sin().double(), torch.randn(2)))


def test_number_is_no_tensor():
    pattern = call(aten.add.Tensor, anything(), number("n"))
    assert find(pattern, last(lambda x: x + 2.5, torch.randn(2)))["n"] == 2.5
    assert find(pattern, last(lambda x, y: x + y, torch.randn(2), torch.randn(2))) is None
