import pytest
import torch
from torch import fx
from torch.nn import functional as F

from npu_compiler import GraphBuilder
from npu_compiler.errors import WrongResultWarning
from npu_compiler.graph.calls import is_effectful
from npu_compiler.lowering.converters import attention

aten = torch.ops.aten


def call(target, *args, **kwargs):
    graph = fx.Graph()
    x = graph.placeholder("x")
    return graph.call_function(target, (x,) * 3 + args, kwargs)


def test_attention_has_an_effect_only_with_dropout():
    whole = aten.scaled_dot_product_attention.default
    for_cpu = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert not is_effectful(call(whole))
    assert not is_effectful(call(whole, None, 0.0, True))
    assert not is_effectful(call(for_cpu, dropout_p=0.0))
    assert is_effectful(call(whole, None, 0.1))
    assert is_effectful(call(for_cpu, dropout_p=0.1))
    assert is_effectful(call(aten.bernoulli.p))


def test_a_graph_with_attention_is_compared(monkeypatch):
    original = attention.attend
    monkeypatch.setattr(
        attention, "attend", lambda *given, scale, **named: original(*given, scale=9.0, **named)
    )
    torch.manual_seed(0)
    x = torch.randn(1, 2, 4, 8)
    graph = GraphBuilder()
    a = graph.parameter(x.shape)
    graph.scaled_dot_product_attention(a, a, a)
    with pytest.warns(WrongResultWarning, match="differed from torch"):
        result = graph.run(x)
    torch.testing.assert_close(result, F.scaled_dot_product_attention(x, x, x))
