"""The order of bytes in memory."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from npu_compiler import GraphBuilder
from npu_compiler.errors import WrongResultWarning
from npu_compiler.graph.nodes import axis_order, inverse_order, is_dense, is_effectful
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


IMAGE = torch.empty(2, 3, 4, 5)


@pytest.mark.parametrize(
    "tensor, order",
    [
        (IMAGE, None),
        (IMAGE.contiguous(memory_format=torch.channels_last), (0, 2, 3, 1)),
        (IMAGE.permute(3, 0, 2, 1), (1, 3, 2, 0)),
        (IMAGE[:, :1].transpose(0, 1), None),
        (torch.empty(4).expand(3, 4), None),
        (torch.empty(4), None),
        (torch.empty(()), None),
    ],
    ids=["plain", "channels_last", "permuted", "size_one", "expanded", "vector", "scalar"],
)
def test_order_makes_the_tensor_contiguous(tensor, order):
    assert axis_order(tensor) == order
    if order is not None:
        turned = tensor.permute(order)
        assert turned.is_contiguous()
        assert turned.permute(inverse_order(order)).stride() == tensor.stride()


@pytest.mark.parametrize(
    "tensor, dense",
    [
        (IMAGE, True),
        (IMAGE.permute(3, 0, 2, 1), True),
        (IMAGE[:, ::2], False),
        (IMAGE[:, :1].expand(2, 3, 4, 5), False),
        (torch.empty(()), True),
    ],
    ids=["plain", "permuted", "gaps", "overlap", "scalar"],
)
def test_dense_has_neither_gaps_nor_overlap(tensor, dense):
    assert is_dense(tensor) is dense
