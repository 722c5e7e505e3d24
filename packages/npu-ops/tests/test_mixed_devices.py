import pytest
import torch

MIXES = {
    "add": lambda x: x + torch.ones(4),
    "radd": lambda x: torch.ones(4) + x,
    "in place": lambda x: x.add_(torch.ones(4)),
    "cpu in place": lambda x: torch.ones(4).add_(x),
    "mm": lambda x: x.view(2, 2) @ torch.ones(2, 2),
    "linear": lambda x: torch.nn.functional.linear(x, torch.ones(4, 4)),
    "cat": lambda x: torch.cat([x, torch.ones(4)]),
    "where": lambda x: torch.where(x > 0, x, torch.ones(4)),
    "out": lambda x: torch.add(x, x, out=torch.empty(4)),
    "foreach": lambda x: torch._foreach_add([x], [torch.ones(4)]),
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_tensors_of_two_devices_are_refused(mix):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        mix(torch.ones(4, device="npu"))


def test_meta_tensors_are_refused():
    with pytest.raises(RuntimeError, match="is not on the expected device npu:0"):
        torch.ones(4, device="npu") + torch.ones(4, device="meta")


def test_the_error_names_op_argument_devices_and_the_next_step():
    with pytest.raises(RuntimeError) as caught:
        torch.mm(torch.ones(2, 2, device="npu"), torch.ones(2, 2))
    message = str(caught.value)
    for part in ("npu:0 and cpu", "argument 'mat2' of aten::mm", '.to("npu")', "[device-mix]"):
        assert part in message


def test_zero_dim_cpu_tensors_are_numbers():
    x = torch.ones(3, device="npu")
    two = torch.tensor(2.0)
    for result in (x + two, two + x, x.mul(two), torch.where(x > 0, x, two), torch.pow(two, x)):
        assert result.device.type == "npu"
    assert (x * two).tolist() == [2.0] * 3
    x[0] = torch.tensor(5.0)
    x.masked_fill_(x == 1, torch.tensor(7.0))
    assert x.tolist() == [5.0, 7.0, 7.0]


def test_python_numbers_keep_the_dtype():
    assert (torch.ones(2, dtype=torch.bfloat16, device="npu") + 1.5).dtype == torch.bfloat16
    assert (torch.ones(2, dtype=torch.int64, device="npu") + 1.5).dtype == torch.float32
    assert (torch.tensor(2, device="npu") + 1.5).dtype == torch.float32


def test_cpu_indices_are_read_on_the_host():
    x = torch.arange(5.0, device="npu")
    assert x[torch.tensor([0, 3])].tolist() == [0.0, 3.0]
    x[torch.tensor([1])] = 9.0
    assert x[1].item() == 9


def test_a_cpu_number_is_never_turned_into_an_npu_tensor():
    number = torch.tensor(2.0)
    result = torch.ones((), device="npu") * number
    assert number.device.type == "cpu"
    assert number.untyped_storage().device.type == "cpu"
    assert result.device.type == "npu"
