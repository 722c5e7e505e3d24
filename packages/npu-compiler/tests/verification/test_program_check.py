"""The smallest wrong part of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.verification.program_check import cut, wrong_part


def _graph() -> fx.GraphModule:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = (x + y).sin()
        values, _ = a.cos().max(1)
        return (values.exp() * 2).tanh() - y.mean()

    return make_fx(function)(torch.randn(3, 4), torch.randn(3, 4))


def _has(*names: str) -> Callable[[fx.GraphModule, Sequence[fx.Node]], bool]:
    """Calls a part wrong that has all of these ops."""

    def is_wrong(part: fx.GraphModule, _: Sequence[fx.Node]) -> bool:
        found = {str(node.target).split(".")[1] for node in part.graph.nodes if "aten" in str(node)
                 or (node.op == "call_function" and "aten" in str(node.target))}  # fmt: skip
        return set(names) <= found

    return is_wrong


def _names(nodes: Sequence[fx.Node]) -> list[str]:
    return [node.name for node in nodes]


@pytest.mark.parametrize("name", ["add", "sin", "cos", "exp", "mul", "tanh", "sub"])
def test_a_single_wrong_call_is_found(name: str) -> None:
    assert _names(wrong_part(_graph(), _has(name))) == [name]


def test_calls_that_are_wrong_together_are_found_with_what_lies_between() -> None:
    found = _names(wrong_part(_graph(), _has("cos", "exp")))
    assert found[0] == "cos"
    assert found[-1] == "exp"


def test_a_call_stays_with_the_picks_from_its_tuple() -> None:
    found = _names(wrong_part(_graph(), _has("max")))
    assert found[0] == "max_1"
    assert all(name.startswith(("max", "getitem")) for name in found)


def test_a_graph_whose_parts_are_right_is_returned_whole() -> None:
    module = _graph()
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    assert wrong_part(module, lambda part, inputs: False) == calls


def test_a_part_computes_what_it_computed_in_the_graph() -> None:
    module = _graph()
    calls = [node for node in module.graph.nodes if node.name in ("sin", "cos")]
    made = cut(module, calls)
    assert made is not None
    part, inputs = made
    assert _names(inputs) == ["add"]
    x = torch.randn(3, 4)
    assert torch.equal(part(x)[0], x.sin().cos())
    part.graph.lint()


def test_a_part_whose_results_nobody_reads_is_none() -> None:
    module = make_fx(lambda x: (x.sin(), x + 1)[1])(torch.randn(3))
    dead = [node for node in module.graph.nodes if node.name == "sin"]
    assert cut(module, dead) is None
