import pytest
import torch


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str
)
def test_item_equals_the_cpu(dtype):
    host = torch.tensor(1, dtype=dtype)
    value = host.to("npu").item()
    assert value == host.item()
    assert type(value) is type(host.item())


def test_python_conversions():
    assert float(torch.tensor(1.5, device="npu")) == 1.5
    assert int(torch.tensor(3, device="npu")) == 3
    assert bool(torch.tensor([True], device="npu"))
    assert [10, 20, 30][torch.tensor(1, device="npu")] == 20
    assert f"{torch.tensor(2.0, device='npu'):.1f}" == "2.0"


def test_item_of_several_elements_is_an_error():
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        torch.zeros(2, device="npu").item()


def test_item_of_a_view_with_an_offset():
    assert torch.arange(5, device="npu")[3].item() == 3


def test_printing_names_the_device():
    assert repr(torch.tensor([1, 2], device="npu")) == "tensor([1, 2], device='npu:0')"
    assert repr(torch.empty(0, device="npu")) == "tensor([], device='npu:0')"
