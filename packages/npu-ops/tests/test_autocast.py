import pytest
import torch


def test_products_are_lowered_and_reductions_are_not():
    x = torch.randn(4, 4, device="npu")
    with torch.autocast("npu", dtype=torch.bfloat16):
        product = x @ x
        assert product.dtype == torch.bfloat16
        assert torch.softmax(product, 0).dtype == torch.float32
        assert (product + x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_training_step_keeps_float32_gradients():
    layer = torch.nn.Linear(4, 4).to("npu")
    with torch.autocast("npu", dtype=torch.bfloat16):
        loss = layer(torch.ones(2, 4, device="npu")).sum()
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32


def test_unsafe_loss_is_refused():
    x = torch.rand(4, device="npu")
    with (
        torch.autocast("npu", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match=r"unsafe to autocast.*\[autocast-unsafe\]"),
    ):
        torch.nn.functional.binary_cross_entropy(x, x)
