import pytest
import torch
from torch.nn import functional


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_weight", [True, False])
@pytest.mark.parametrize("shape", [(4, 6, 8), (8,)])
@pytest.mark.parametrize("dims", [1, 2])
def test_gradients_follow_the_cpu(dtype, has_weight, shape, dims):
    if dims > len(shape):
        shape = (*shape, 3)
    generator = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    weight = torch.rand(shape[-dims:], generator=generator).to(dtype)
    found = []
    for device in ("cpu", "npu"):
        leaves = [tensor.detach().to(device).requires_grad_() for tensor in (x, weight)]
        given = leaves[1] if has_weight else None
        functional.rms_norm(leaves[0], shape[-dims:], given).backward(gradient.to(device))
        found.append([leaf.grad.cpu() for leaf in leaves if leaf.grad is not None])
    for got, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, expected)


def test_a_frozen_input_gets_no_gradient():
    weight = torch.ones(4, device="npu", requires_grad=True)
    functional.rms_norm(torch.ones(2, 4, device="npu"), (4,), weight).sum().backward()
    torch.testing.assert_close(weight.grad.cpu(), torch.full((4,), 2.0))
