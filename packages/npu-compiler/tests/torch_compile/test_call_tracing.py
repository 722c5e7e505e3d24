"""Tracing call by call: same graphs as AOTAutograd, which traces the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd

from npu_compiler.graph.op_forms import decompositions, keep_attention_whole
from npu_compiler.graph.origins import graph_text, node_origins
from npu_compiler.torch_compile.call_tracing import TracedCalls, trace_calls


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.heads(self.norm(x)).chunk(3, -1)
        query, key, value = (one.view(2, 5, 4, 4).transpose(1, 2) for one in parts)
        found = F.scaled_dot_product_attention(query, key, value)
        found = found.transpose(1, 2).reshape(2, 5, 16)
        return x + F.dropout(F.gelu(self.out(found)), 0.1, self.training)


class _Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)), inplace=True)
        y = self.second(x)
        y += x
        return F.max_pool2d(F.relu_(y), 2).flatten(1)


def _positions(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.shape[1])
    mask = places[None, :] <= places[:, None]
    return x.masked_fill(~mask, 0.0).cumsum(-1)


def _traces(
    function: Callable[..., Any], *inputs: torch.Tensor
) -> tuple[TracedCalls | None, fx.GraphModule]:
    """A function's graph by calls, and by AOTAutograd."""
    by_calls: list[TracedCalls | None] = []
    by_aot: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, _: Any) -> Any:
        by_aot.append(graph)
        return graph.forward

    def backend(graph: fx.GraphModule, given: Any) -> Any:
        keep_attention_whole(graph)
        by_calls.append(trace_calls(graph, decompositions()))
        return aot_autograd(
            fw_compiler=keep,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )(graph, given)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend)(*inputs)
    return by_calls[0], by_aot[0]


@pytest.mark.parametrize(
    "function, inputs",
    [
        (nn.Sequential(*[_Block() for _ in range(3)]).eval(), (torch.randn(2, 5, 16),)),
        (_Convolutions().eval(), (torch.randn(1, 3, 8, 8),)),
        (_positions, (torch.randn(5, 5),)),
        (lambda x: x.double().add_(1).mul_(2).sum(), (torch.randn(3),)),
        (lambda x: [one * 2 for one in x.split(2)], (torch.randn(6),)),
        (lambda x, y: torch.where(x > y, x, y).to(torch.float16), (torch.randn(3), torch.ones(3))),
    ],
    ids=["layers", "convolutions", "masks", "writes", "parts", "casts"],
)
def test_graphs_are_those_of_aotautograd(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]
) -> None:
    traced, expected = _traces(function, *inputs)
    assert traced is not None
    assert graph_text(traced.module.graph) == graph_text(expected.graph)
    assert node_origins(traced.module.graph) == node_origins(expected.graph)


def _write_behind_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    part = y[0]
    y.mul_(2)
    return part + 1


def _under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return torch.mm(x, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(-1),
        lambda x: (x + 1).chunk(2),
        lambda x: x.add_(1),
        lambda x: x + torch.rand(4, 4),
        _under_autocast,
        lambda x: F.linear(x.view(2, 4, 2).transpose(1, 2), x),
        _write_behind_a_view,
    ],
    ids=[
        "view",
        "results in one memory",
        "input written",
        "random",
        "autocast",
        "rows with gaps",
        "alias",
    ],
)
def test_what_needs_aotautograd_is_left_to_it(function: Callable[..., Any]) -> None:
    traced, _ = _traces(function, torch.randn(4, 4))
    assert traced is None


def test_weights_are_told_from_inputs() -> None:
    traced, _ = _traces(nn.Linear(4, 4).eval(), torch.randn(2, 4))
    assert traced is not None
    placeholders = traced.module.graph.find_nodes(op="placeholder")
    sizes = [tuple(placeholders[place].meta["val"].shape) for place in traced.static_positions]
    assert sorted(sizes) == [(4,), (4, 4)]


def test_a_graph_with_gradients_is_left_to_aotautograd() -> None:
    kept: list[TracedCalls | None] = []

    def backend(graph: fx.GraphModule, _: Any) -> Any:
        kept.append(trace_calls(graph, decompositions()))
        return graph.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.randn(3))
    assert kept == [None]
