import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import default_decompositions

from npu_compiler.exported.capture import without_composites
from npu_compiler.graph.op_forms import decompositions
from npu_compiler.lowering import find_converter

# Within torch.export.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


class Calls(nn.Module):
    """Composites with a converter, without one, and with one for each part."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x, y):
        hidden = self.norm(self.linear(x)).chunk(2, 1)[0].contiguous()
        kept = F.scaled_dot_product_attention(x[None], y[None], y[None])
        return [
            *(torch.max(x, y), x.std(1), F.normalize(x), torch.einsum("ij,kj->ik", x, y)),
            *(F.one_hot(x.argmax(1), 7), F.pad(x, (1, 1)), F.huber_loss(x, y), F.glu(x)),
            *(F.bilinear(x, y, y[None, :, :1] @ x[None, :1]), x.tile(2), hidden, kept),
        ]


def exported():
    torch.manual_seed(0)
    examples = (torch.randn(6, 6), torch.randn(6, 6))
    return torch.export.export(Calls().eval(), examples)


def test_the_graph_is_that_of_torch_with_the_same_table():
    program = exported()
    with torch.no_grad():
        found = without_composites(program).graph_module.code
        every = dict(default_decompositions().items())
        table = {op: made for op, made in every.items() if find_converter(op) is None}
        expected = program.run_decompositions(table | decompositions()).graph_module.code
    assert found == expected
    assert "aten.linear.default" in found
    assert "aten.glu" not in found


def test_a_composite_op_of_a_user_is_taken_apart():
    with torch.library._scoped_library("composites_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")

        class Twice(nn.Module):
            def forward(self, x):
                return torch.ops.composites_test.twice(x)

        program = torch.export.export(Twice(), (torch.ones(2),))
        assert "twice" not in without_composites(program).graph_module.code
