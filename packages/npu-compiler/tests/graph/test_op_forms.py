"""Functional forms of writing ops, and attention that stays whole or does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from npu_compiler.graph.op_forms import (
    functional_form,
    has_functional_form,
    keep_attention_whole,
    written_arguments,
)


@pytest.fixture
def define():
    library = torch.library.Library("functional_forms_test", "FRAGMENT")

    def make(schema, function=None):
        name = library.define(schema)
        if function is not None:
            library.impl(name, function, "CompositeExplicitAutograd")
        return getattr(torch.ops.functional_forms_test, name).default

    yield make
    library._destroy()


def shift(first, x, second, *, by=1.0):
    first.add_(x)
    second.sub_(x * by)
    return x + by


def test_form_writes_to_nothing_and_returns_what_the_op_writes(define):
    op = define(
        "shift(Tensor(a!) first, Tensor x, Tensor(b!) second, *, float by=1.0) -> Tensor", shift
    )
    assert written_arguments(op) == ("first", "second")
    form = functional_form(op)
    assert str(form) == "functional_forms_test.shift_functional.default"
    assert not form._schema.is_mutable
    first, second, x = torch.zeros(3), torch.ones(3), torch.tensor([1.0, -2.0, float("nan")])
    result, *written = form(first, x, second, by=2.0)
    assert (first.tolist(), second.tolist()) == ([0.0] * 3, [1.0] * 3)
    expected = shift(first, x, second, by=2.0), first, second
    for ours, theirs in zip((result, *written), expected, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def clear(x):
    x.zero_()


def test_form_of_an_op_without_a_result_returns_the_one_written_tensor(define):
    op = define("clear(Tensor(a!) x) -> ()", clear)
    assert functional_form(op)(torch.ones(2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "schema",
    [
        "reads(Tensor x) -> Tensor",
        "aliases(Tensor(a!) x) -> Tensor(a!)",
        "lists(Tensor(a!)[] x) -> ()",
        "may_be_none(Tensor(a!)? x) -> ()",
    ],
)
def test_what_has_no_form(define, schema):
    assert not has_functional_form(define(schema))
    assert not has_functional_form(torch.ops.aten.add_.Tensor)


def test_form_of_an_op_that_was_taken_back_is_that_of_its_successor():
    """The dispatcher frees an op with its library; calls through a freed op may end in any way."""
    others = []
    for round_ in range(20):
        library = torch.library.Library("functional_again_test", "FRAGMENT")
        library.define("add_some(Tensor(a!) x, Tensor y) -> Tensor")
        library.impl(
            "add_some", lambda x, y, by=round_: x.add_(by) + y, "CompositeExplicitAutograd"
        )
        form = functional_form(torch.ops.functional_again_test.add_some.default)
        x, y = torch.zeros(2), torch.ones(2)
        result, written = form(x, y)
        assert (result.tolist(), written.tolist()) == ([round_ + 1.0] * 2, [float(round_)] * 2)
        library._destroy()
        # These may be at the op's former address.
        others.append(torch.library.Library(f"functional_other_{round_}", "DEF"))
        for kind in ("int a", "str b", "Tensor c"):
            others[-1].define(f"takes_{kind[-1]}({kind}) -> int")
    for other in others:
        other._destroy()


@pytest.mark.parametrize("is_written", [False, True])
def test_attention_with_a_result_that_is_written_stays_torchs(is_written):
    targets = []

    def backend(graph, inputs):
        keep_attention_whole(graph)
        targets.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    def f(x):
        found = F.scaled_dot_product_attention(x, x, x)
        rows = found.transpose(1, 2).flatten(2)  # a view, by the strides of the query
        return found, rows.relu_() if is_written else rows.relu()

    x = torch.randn(1, 6, 4, 8).transpose(1, 2)
    with torch.no_grad():
        for got, expected in zip(torch.compile(f, backend=backend)(x), f(x), strict=True):
            torch.testing.assert_close(got, expected)
    assert (F.scaled_dot_product_attention in targets) is is_written


@pytest.mark.parametrize("name", ["relu_", "relu"])
def test_attention_in_a_graph_without_values_stays_torchs_if_the_graph_writes(name):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    found = graph.call_function(F.scaled_dot_product_attention, (x, x, x))
    graph.output((found, graph.call_method(name, (found,))))
    module = torch.fx.GraphModule({}, graph)
    keep_attention_whole(module)
    targets = [node.target for node in module.graph.nodes]
    assert (F.scaled_dot_product_attention in targets) is (name == "relu_")
