"""torch with a program's weights and rounding computes what the model's code says."""

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
