import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_llm.capture.functional import drop_grad_modes, make_functional
from npu_llm.errors import CaptureError


def given():
    return torch.tensor([[1.0, -2.0, 3.5], [float("nan"), 0.25, -7.0]])


class Step(torch.nn.Module):
    """A function as a module: tracing notes the lines of modules only."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def traced(function):
    make = make_fx(Step(function), tracing_mode="fake", pre_dispatch=True, record_stack_traces=True)
    return make(given())


def check(function):
    """Makes the graph of a function functional, and compares it with the function."""
    graph = traced(function)
    assert any(node.target._schema.is_mutable for node in calls(graph))
    make_functional(graph)
    assert not any(node.target._schema.is_mutable for node in calls(graph))
    x = given()
    torch.testing.assert_close(graph(x), function(given()), equal_nan=True)
    torch.testing.assert_close(x, given(), equal_nan=True)
    return graph


def calls(graph):
    return [node for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def test_write_into_an_own_tensor_becomes_a_new_one():
    def step(x):
        y = x * 2
        y += 1
        return y * y

    graph = check(step)
    text = graph.code
    make_functional(graph)
    assert graph.code == text


def view_that_nobody_else_reads(x):
    y = (x * 2).unsqueeze(1).squeeze(1)
    y.add_(1)
    return y


def select(x):
    y = x * 2
    y[1].add_(1)
    return y


def under_a_view(x):
    y = x * 2
    row = y.view(-1)
    y.add_(1)
    return row


def slice_with_a_step(x):
    y = x * 2
    y[:, ::2] = y[:, 1:2] - 5
    return y, y[:, :2]


def two_views_of_one(x):
    y = x * 2
    first, other = y[0], y.t()
    first.mul_(3)
    other[1] += first[2]
    y[1, 0] = 4
    return y, first, other


def through_other_forms(x):
    y = x * 2
    z = y.view(3, 2).transpose(0, 1).unsqueeze(0).permute(2, 0, 1)
    z[1:] -= 3
    return y


def parts(x):
    y = x * 2
    left, right = y.split([1, 2], dim=1)
    top, _ = y.unbind(0)
    right.add_(1)
    top.mul_(2)
    return y, left, right


def numbers_that_stay_integers(x):
    y = (x > 0).to(torch.int32)
    y[0].add_(torch.ones(3, dtype=torch.int64))
    return y


def written_before_it_is_seen(x):
    y = x * 2
    y[0] = 1
    seen = y.reshape(-1)
    y[1] = 2
    return seen


def copied_by_reshape(x):
    y = x * 2
    copy = y.t().reshape(-1)
    y.add_(1)
    copy.sub_(2)
    return y, copy


def one_of_several_results(x):
    values, places = (x * 2).nan_to_num().topk(2)
    values[0] = values[1] + places[1]
    return values, places


def detached_in_place(x):
    y = (x * 2).detach_()
    y[0].add_(1)
    return y


WRITES = [
    detached_in_place,
    one_of_several_results,
    view_that_nobody_else_reads, select, under_a_view, slice_with_a_step, two_views_of_one,
    through_other_forms, parts, numbers_that_stay_integers, written_before_it_is_seen,
    copied_by_reshape,
]  # fmt: skip


@pytest.mark.parametrize("step", WRITES)
def test_what_others_see_is_written_once_more(step):
    check(step)


def into_the_input(x):
    return x.add_(1)


def into_a_view_of_the_input(x):
    x[0].add_(1)
    return x + 1


def into_what_is_repeated(x):
    y = x[:1] * 2
    y.expand(4, 3)[2].add_(1)
    return y


def into_the_diagonal(x):
    y = x * 2
    y.diagonal().fill_(1)
    return y


def form_in_place(x):
    return (x * 2).t_()


@pytest.mark.parametrize(
    "step",
    [
        into_the_input, into_a_view_of_the_input, into_what_is_repeated, into_the_diagonal,
        form_in_place,
    ],
)  # fmt: skip
def test_write_that_has_no_other_form_is_refused_with_its_line(step):
    with pytest.raises(CaptureError, match=r"test_functional\.py:\d+") as caught:
        make_functional(traced(step))
    assert caught.value.code == "writes-view"


def without_gradients(x):
    with torch.no_grad():
        y = x * 2
    return y + 1


def test_who_runs_a_traced_graph_keeps_gradients():
    x = torch.ones(2)
    with torch.no_grad():
        traced = make_fx(without_gradients, tracing_mode="fake", pre_dispatch=True)(x)
    assert "_set_grad_enabled" in traced.code
    drop_grad_modes(traced)
    assert torch.equal(traced(x), without_gradients(x))
    assert torch.is_grad_enabled()
