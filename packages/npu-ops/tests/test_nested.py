"""Nested tensors of the strided layout, against the CPU."""

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")

ROWS = [torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3) - 5]


def nested(device, **options):
    return torch.nested.nested_tensor(ROWS, device=device, **options)


def linear(x):
    return torch.nn.functional.linear(x, torch.ones(5, 3, device=x.device))


def half_dropped(x):
    torch.manual_seed(3)
    return torch.nn.functional.dropout(x, 0.5)


OPERATIONS = {
    "mul": lambda x: x * 2,
    "add": lambda x: x + x,
    "relu": lambda x: x.relu(),
    "gelu": torch.nn.functional.gelu,
    "transpose": lambda x: x.transpose(1, 2),
    "contiguous": lambda x: x.transpose(1, 2).contiguous(),
    "softmax": lambda x: torch.softmax(x, -1),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "double": lambda x: x.double(),
    "matmul": lambda x: x @ x.transpose(1, 2),
    "linear": linear,
    "dropout": half_dropped,
    "relu_": lambda x: x.clone().relu_(),
    "fill_": lambda x: x.clone().fill_(3),
    "sum": lambda x: x.sum(-1, keepdim=True),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_the_cpus(name):
    there, host = OPERATIONS[name](nested("npu")), OPERATIONS[name](nested("cpu"))
    assert there.device == torch.device("npu:0")
    assert there.is_nested
    for found, expected in zip(there.unbind(), host.unbind(), strict=True):
        torch.testing.assert_close(found.cpu(), expected)


def test_it_pads_and_comes_back_from_padded():
    padded = torch.nested.to_padded_tensor(nested("npu"), -1.0)
    assert padded.device == torch.device("npu:0")
    assert torch.equal(padded.cpu(), torch.nested.to_padded_tensor(nested("cpu"), -1.0))


def test_rows_are_views():
    there = nested("npu")
    row = there.unbind()[1]
    row.zero_()
    assert there.unbind()[1].abs().sum().item() == 0
    assert there[0].tolist() == ROWS[0].tolist()


def test_shapes_stay_on_the_cpu():
    there = nested("npu")
    assert there._nested_tensor_size().device.type == "cpu"
    assert there._nested_tensor_size().tolist() == [[2, 3], [4, 3]]


def test_it_moves_between_devices():
    there = nested("cpu").to("npu")
    assert there.device == torch.device("npu:0")
    assert there.cpu().device.type == "cpu"
    assert torch.equal(there.cpu().values(), nested("cpu").values())


def test_gradients_flow():
    grads = {}
    for device in ("cpu", "npu"):
        x = nested(device, requires_grad=True)
        (x * x).to_padded_tensor(0.0).sum().backward()
        grads[device] = x.grad
    for found, expected in zip(grads["npu"].unbind(), grads["cpu"].unbind(), strict=True):
        torch.testing.assert_close(found.cpu(), expected)


def test_it_works_in_inference_mode():
    with torch.inference_mode():
        there = nested("npu") * 2
        assert torch.equal(there.unbind()[0].cpu(), ROWS[0] * 2)


def test_an_error_of_the_kernel_is_the_cpus():
    with pytest.raises(RuntimeError, match="keepdim=True"):
        nested("npu").sum(-1)


def test_it_prints_with_its_device():
    assert "device='npu:0'" in repr(nested("npu"))
