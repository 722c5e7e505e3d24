"""Plans: which nodes make a program together."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.graph_compiler.partition import NOT_WORTH, make_plan
from npu_compiler.options import CompilerConfig


def plan_of(function, *inputs, **options):
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    graph.eliminate_dead_code()
    return make_plan(graph, config=CompilerConfig(**options))


def names(plan):
    return [[node.name for node in segment.nodes] for segment in plan.segments]


def test_everything_that_can_be_lowered_is_one_segment():
    plan = plan_of(lambda x: (x.sin() @ x).relu(), torch.randn(4, 4))
    assert names(plan) == [["sin", "mm", "relu"]]
    assert plan.eager == {}


def test_eager_node_parts_what_it_needs_from_what_needs_it():
    def function(x):
        return torch.linalg.cholesky(x.sin() @ x).cos() + x.tanh()

    plan = plan_of(function, torch.randn(4, 4))
    assert len(plan.segments) == 2
    # Calls that do not wait for the eager node are in the first program.
    assert {"sin", "mm", "tanh"} <= set(names(plan)[0])
    assert {"cos", "add"} <= set(names(plan)[1])


def test_independent_eager_nodes_need_no_further_program():
    def function(x):
        a, b = torch.linalg.det(x.sin()), torch.linalg.det(x.cos())
        return a.tanh() + b.tanh()

    assert len(plan_of(function, torch.randn(4, 4)).segments) == 2


def test_segment_without_floating_point_work_runs_eagerly():
    plan = plan_of(lambda i: (i + 1).view(-1), torch.arange(4))
    assert plan.segments == ()
    assert set(plan.eager.values()) == {NOT_WORTH}


def test_nothing_passes_a_write():
    def function(x):
        y = x.sin()
        x.copy_(y)
        return x.cos()

    plan = plan_of(function, torch.randn(4))
    assert names(plan) == [["sin"], ["cos"]]
    (write,) = plan.eager
    assert plan.levels[write] == 0


def test_write_to_an_input_waits_for_its_readers_alone():
    def function(x, y):
        a = torch.i0(y.sin())
        b = x.t() * a
        x.copy_(y.tanh())
        return b, y.exp()

    plan = plan_of(function, torch.randn(4, 4), torch.randn(4, 4))
    (write,) = (node for node in plan.eager if node.name == "copy_")
    # The reader of x is after the eager call, so the write is too; the rest does not wait.
    assert plan.levels[write] == 1
    assert {"sin", "tanh", "exp"} <= set(names(plan)[0])


def test_random_calls_keep_their_order():
    def function(x):
        first = torch.bernoulli(torch.linalg.inv(x.sigmoid()).sigmoid())
        return first + torch.bernoulli(x.cos().abs())

    plan = plan_of(function, torch.rand(4, 4))
    draws = [node for node in plan.eager if "bernoulli" in node.name]
    assert plan.levels[draws[0]] <= plan.levels[draws[1]]


def test_reasons_are_given():
    plan = plan_of(
        lambda x: torch.linalg.inv(x.erf()) + x.double().sum().float(),
        torch.rand(4, 4),
        fallback_ops=("aten.erf.default",),
    )
    reasons = {node.name: reason for node, reason in plan.eager.items()}
    assert reasons["erf"] == "listed in fallback_ops"
    assert reasons["linalg_inv_ex"].startswith("no converter registered")
    assert "float64 would be computed in float32" in reasons.values()
