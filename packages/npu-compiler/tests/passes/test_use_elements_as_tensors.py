"""Elements that are read as numbers stay within a program."""

import pytest
import torch

import npu_compiler
from npu_compiler import GraphBuilder


def scaled(x):
    return x * x.sum().item() - 1


class Scaled(torch.nn.Module):
    def forward(self, x):
        return scaled(x)


def test_an_exported_model_is_one_program(tmp_path):
    x = torch.randn(3, 4)
    npu_compiler.export(Scaled(), (x,), tmp_path / "model")
    loaded = npu_compiler.load(tmp_path / "model")
    torch.testing.assert_close(loaded(x), scaled(x))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.int() * x.sum().item(), id="integers become floats"),
        pytest.param(lambda x: x.half() + x.sum().item(), id="half stays half"),
        pytest.param(lambda x: x.sum() * x.amax().item(), id="both without axes"),
        pytest.param(lambda x: x.clamp(max=x.mean().item()), id="another call"),
    ],
)
def test_numbers_mean_what_they_mean_to_torch(compiled, function):
    x = torch.randn(3, 4)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        found, expected = compiled(function)(x), function(x)
    torch.testing.assert_close(found, expected)
    assert found.dtype is expected.dtype


def test_a_graph_built_by_hand_uses_its_elements():
    graph = GraphBuilder()
    x = graph.parameter((3, 4))
    graph.compile(scaled(x))
    given = torch.randn(3, 4)
    torch.testing.assert_close(graph.run(given), scaled(given))
    with pytest.raises(npu_compiler.GraphError, match=r"\[graph-op\]"):
        x.item()
