"""torch with a program's weights and rounding gives the model's results."""

import pytest
import torch

from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.verification.reference import EagerWeights, Rounding


def test_what_is_written_through_a_view_is_kept():
    # Models with latent attention fill their keys so.
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with EagerWeights(StreamedWeights(), rounding=Rounding(torch.bfloat16)):
        filled = values.new_full((2, 3), float("nan"))
        filled[:, :2].copy_(values)
        filled[:, 2:].copy_(values[:, :1])
    assert filled.tolist() == [[1.0, 2.0, 1.0], [3.0, 4.0, 3.0]]


def test_what_is_picked_from_a_weight_is_rounded():
    weight = torch.nn.Parameter(torch.tensor([[1.0, 1.001], [2.0, 2.003]]), requires_grad=False)
    with EagerWeights(StreamedWeights(), rounding=Rounding(torch.bfloat16)):
        picked = weight[1]
    assert picked.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("rounding", [None, Rounding(torch.bfloat16, 4)])
def test_a_product_with_a_large_weight_is_made_in_parts(monkeypatch, rounding):
    linear, x = torch.nn.Linear(8, 10, bias=False), torch.randn(3, 8)
    sizes = []

    class Held:
        def read(self, tensor):
            return tensor.detach()

        def rows(self, tensor, indices):
            sizes.append(len(indices))
            return tensor.detach()[indices]

    def product():
        with torch.no_grad(), EagerWeights(StreamedWeights(), Held(), rounding=rounding):
            return linear(x)

    expected = product()
    assert sizes == []
    monkeypatch.setattr("npu_llm.verification.reference._LARGEST_WHOLE", 40)
    monkeypatch.setattr("npu_llm.verification.reference._PIECE", 32)
    torch.testing.assert_close(product(), expected)
    assert sizes == [4, 4, 2]
