"""The base class of passes checks the changes of a pass."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.errors import PassError
from npu_compiler.passes.activations import FuseGelu
from npu_compiler.passes.decompose import OpenComplexNumbers
from npu_compiler.passes.infra.pass_base import Facts, GraphPass
from npu_compiler.passes.linears import BatchMatmuls, FuseLinear, MergeLinears
from npu_compiler.passes.simplify import FoldConstants, SimplifyCasts, SimplifyViews


def traced() -> fx.Graph:
    return make_fx(lambda x: x.sin().cos(), tracing_mode="fake")(torch.randn(3)).graph


@dataclass(frozen=True)
class Careless(GraphPass):
    name = "careless"
    stage = "normalize"


def test_result_of_another_shape_is_an_error():
    class Wrong(Careless):
        def call(self, graph, facts):
            cos = next(node for node in graph.nodes if node.name == "cos")
            cos.meta["val"] = cos.meta["val"].new_empty(4)
            return 1

    with pytest.raises(PassError, match=r"careless.*float32 \(3\).*float32 \(4\)") as caught:
        Wrong().run(traced(), Facts())
    assert caught.value.code == "pass-broke-graph"


def test_call_without_a_value_is_an_error():
    class Silent(Careless):
        def call(self, graph, facts):
            sin = next(node for node in graph.nodes if node.name == "sin")
            del sin.meta["val"]
            return 1

    with pytest.raises(PassError, match=r"sin .*has no value"):
        Silent().run(traced(), Facts())


def test_use_before_definition_is_an_error():
    class Jumbled(Careless):
        def call(self, graph, facts):
            sin, cos = (n for n in graph.nodes if n.op == "call_function")
            cos.append(sin)
            return 1

    with pytest.raises(PassError, match="careless"):
        Jumbled().run(traced(), Facts())


def test_pass_runs_on_its_kinds_alone():
    class Backward(Careless):
        kinds = frozenset({"backward"})

        def call(self, graph, facts):
            return 1

    assert Backward().run(traced(), Facts(kind="inference")).count == 0
    assert Backward().run(traced(), Facts(kind="backward")).count == 1


def products(x, a, b, c):
    return x @ a, x.sin() @ b, x.cos() @ c


def turned(x, *_):
    return torch.view_as_complex(x.reshape(4, 2, 2)).abs()


@pytest.mark.parametrize(
    "graph_pass, function, target",
    [
        (BatchMatmuls(), products, "aten.mm.default"),
        (MergeLinears(), lambda x, a, b, c: (F.linear(x, a), F.linear(x, b)), "aten.t.default"),
        (SimplifyCasts(), lambda x, *_: x.half().float().half().relu(), "aten._to_copy.default"),
        (SimplifyViews(), lambda x, *_: x.reshape(2, 8).reshape(16).relu(), "aten.view.default"),
        (FoldConstants(), lambda x, *_: x + torch.arange(4.0).exp(), "aten.exp.default"),
        (OpenComplexNumbers(), turned, "aten.abs.default"),
        (FuseGelu(), lambda x, *_: x * 0.5 * (1 + torch.erf(x / 2**0.5)), "aten.erf.default"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_kept_calls_stay(graph_pass, function, target):
    inputs = [torch.randn(4, 4) for _ in range(4)]

    def rewritten(*, is_marked):
        module = make_fx(lambda *given: function(*given), tracing_mode="fake")(*inputs)
        names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        for node in module.graph.nodes:
            if is_marked and str(node.target) == target:
                node.meta["npu_keep_float32"] = True
        before = [str(node.target) for node in module.graph.nodes].count(target)
        facts = Facts(constants=frozenset(names[1:]))
        count = FuseLinear().run(module.graph, facts).count if "linears" in graph_pass.name else 0
        count += graph_pass.run(module.graph, facts).count
        return count, before, [str(node.target) for node in module.graph.nodes].count(target)

    count, _, _ = rewritten(is_marked=False)
    assert count > 0
    _, before, after = rewritten(is_marked=True)
    assert before == after
