"""The base class of passes checks what a pass did."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.errors import PassError
from npu_compiler.passes.base import Facts, GraphPass


def traced() -> fx.Graph:
    return make_fx(lambda x: x.sin().cos(), tracing_mode="fake")(torch.randn(3)).graph


@dataclass(frozen=True)
class Careless(GraphPass):
    name = "careless"
    stage = "normalize"


def test_result_of_another_shape_is_an_error():
    class Wrong(Careless):
        def _rewrite(self, graph, facts):
            cos = next(node for node in graph.nodes if node.name == "cos")
            cos.meta["val"] = cos.meta["val"].new_empty(4)
            return 1

    with pytest.raises(PassError, match=r"careless.*float32 \(3\).*float32 \(4\)") as caught:
        Wrong().run(traced(), Facts())
    assert caught.value.code == "pass-broke-graph"


def test_call_without_a_value_is_an_error():
    class Silent(Careless):
        def _rewrite(self, graph, facts):
            sin = next(node for node in graph.nodes if node.name == "sin")
            del sin.meta["val"]
            return 1

    with pytest.raises(PassError, match=r"sin .*has no value"):
        Silent().run(traced(), Facts())


def test_use_before_definition_is_an_error():
    class Jumbled(Careless):
        def _rewrite(self, graph, facts):
            sin, cos = (n for n in graph.nodes if n.op == "call_function")
            cos.append(sin)
            return 1

    with pytest.raises(PassError, match="careless"):
        Jumbled().run(traced(), Facts())


def test_pass_runs_on_its_kinds_alone():
    class Backward(Careless):
        kinds = frozenset({"backward"})

        def _rewrite(self, graph, facts):
            return 1

    assert Backward().run(traced(), Facts(kind="inference")).count == 0
    assert Backward().run(traced(), Facts(kind="backward")).count == 1
