"""A fixture that runs one pass over a traced function and compares the graph's results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.passes.infra.pass_base import Facts, GraphPass

# Results of a fused op differ by the order of sums alone.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Rewritten:
    """A graph after a pass, and in how many places it was changed."""

    module: fx.GraphModule
    count: int

    @property
    def ops(self) -> list[str]:
        """The calls in their order, picks from tuples apart."""
        return [
            str(node.target)
            for node in self.module.graph.nodes
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
        ]


@pytest.fixture
def rewrites() -> Callable[..., Rewritten]:
    """Traces a function, runs passes, checks values, and that a second run changes nothing."""

    def run(
        function: Callable[..., Any],
        *inputs: torch.Tensor,
        passes: GraphPass | list[GraphPass],
        kind: str = "inference",
        weights: tuple[int, ...] = (),
        kept_ops: frozenset[str] = frozenset(),
        is_exact: bool = False,
    ) -> Rewritten:
        # Through a function without defaults, which make_fx would count as inputs.
        module = make_fx(lambda *given: function(*given), tracing_mode="fake")(*inputs)
        module.graph.eliminate_dead_code()
        names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        facts = Facts(kind, frozenset(names[index] for index in weights), kept_ops)
        chain = passes if isinstance(passes, list) else [passes]
        expected = pytree.tree_leaves(function(*[value.clone() for value in inputs]))
        count = [graph_pass.run(module.graph, facts).count for graph_pass in chain][-1]
        module.recompile()
        found = pytree.tree_leaves(module(*[value.clone() for value in inputs]))
        tolerance = 0.0 if is_exact else TOLERANCE
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
        text = str(module.graph)
        assert chain[-1].run(module.graph, facts).count == 0
        assert str(module.graph) == text
        return Rewritten(module, count)

    return run
