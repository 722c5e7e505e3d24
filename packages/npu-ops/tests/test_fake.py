import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def test_fake_tensors_live_on_npu_without_memory():
    before = torch.npu.memory_allocated()
    with FakeTensorMode():
        x = torch.randn(1 << 20, 64, device="npu")
        total = (x @ x.t()[:, :4]).relu().sum()
    assert x.device == total.device == torch.device("npu:0")
    assert torch.npu.memory_allocated() == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.Conv2d(3, 4, 3, device="npu")(torch.randn(1, 3, 8, 8, device="npu")),
        lambda: torch.nn.LSTM(4, 4, device="npu")(torch.randn(2, 1, 4, device="npu"))[0],
        lambda: torch.nn.functional.scaled_dot_product_attention(
            *[torch.randn(1, 2, 4, 8, device="npu")] * 3
        ),
        lambda: torch.nn.functional.dropout(torch.randn(4, device="npu"), 0.5),
        lambda: torch.nn.Embedding(5, 3, device="npu")(
            torch.zeros(2, dtype=torch.long, device="npu")
        ),
    ],
    ids=["conv", "lstm", "sdpa", "dropout", "embedding"],
)
def test_layers_infer_shapes_on_npu(make):
    with FakeTensorMode():
        assert make().device.type == "npu"


def test_fake_copy_of_a_real_tensor():
    real = torch.randn(2, 3, device="npu")
    fake = FakeTensorMode().from_tensor(real)
    assert (fake.device, fake.shape) == (real.device, real.shape)


def test_aot_eager_compiles_forward_and_backward():
    def function(x):
        return torch.nn.functional.gelu(x @ x).sum()

    x = torch.randn(4, 4, device="npu", requires_grad=True)
    y = x.detach().clone().requires_grad_()
    torch.compile(function, backend="aot_eager")(x).backward()
    function(y).backward()
    torch.testing.assert_close(x.grad, y.grad)
