import operator

import numpy as np
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from npu_compiler.lowering import lower
from npu_llm.capture.chunks.token_loop import TokenLoop

_aten = torch.ops.aten


def loop_of_one_state() -> TokenLoop:
    """state * 0.5 + row, all plus what is the same for each; tells the state before it."""
    graph = fx.Graph()
    state, row, same = (graph.placeholder(name) for name in ("state", "row", "same"))
    half = graph.call_function(_aten.mul.Tensor, (state, 0.5))
    summed = graph.call_function(_aten.add.Tensor, (half, row))
    after = graph.call_function(_aten.add.Tensor, (summed, same))
    graph.output((after, state))
    for node in graph.nodes:
        if node.op != "output":
            with FakeTensorMode():
                node.meta["val"] = torch.empty(*([1] if node is not same else []), 3)
    return TokenLoop(fx.GraphModule({}, graph), states=1, rows=1)


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_the_lowered_loop_is_the_loop(tokens, core):
    loop = loop_of_one_state()
    graph = fx.Graph()
    values = [torch.randn(1, 3), torch.randn(tokens, 3), torch.randn(3)]
    inputs = [graph.placeholder(name) for name in ("state", "rows", "same")]
    call = graph.call_function(loop, tuple(inputs))
    expected = loop(*values)
    items = [graph.call_function(operator.getitem, (call, index)) for index in range(2)]
    graph.output(tuple(items))
    with FakeTensorMode() as mode:
        for node, value in zip(inputs, values, strict=True):
            node.meta["val"] = mode.from_tensor(value)
        call.meta["val"] = [mode.from_tensor(one) for one in expected]
        for item, one in zip(items, call.meta["val"], strict=True):
            item.meta["val"] = one
    model = lower(fx.GraphModule({}, graph)).model
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    got = compiled([value.numpy() for value in values])
    for index, one in enumerate(expected):
        np.testing.assert_allclose(got[index], one.numpy(), rtol=1e-6, atol=1e-6)


def test_a_state_goes_from_token_to_token_and_each_tells_the_one_before():
    rows = torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 3)
    after, before = loop_of_one_state()(torch.full((1, 3), 4.0), rows, torch.zeros(3))
    assert before[:, 0].tolist() == [4.0, 3.0, 3.5]
    assert after.tolist() == [[4.75] * 3]
