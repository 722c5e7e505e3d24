"""Printed npu tensors: the values as on the CPU, and the device."""

import pytest
import torch

SHOWN = {
    "vector": torch.arange(3.0),
    "scalar": torch.tensor(2.5),
    "integers": torch.tensor([[1, -20], [300, 4]]),
    "booleans": torch.tensor([True, False]),
    "half": torch.tensor([1.0, 0.125], dtype=torch.float16),
    "bfloat16": torch.tensor([1.0, 3.0], dtype=torch.bfloat16),
    "complex": torch.tensor([1 + 2j, -3j]),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "special": torch.tensor([float("nan"), float("inf"), -1e30]),
    "empty": torch.empty(0, 3),
    "large": torch.arange(5000.0).reshape(50, 100),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_values_are_shown_as_on_the_cpu(name):
    tensor = SHOWN[name]
    shown = repr(tensor.to("npu"))
    assert "device='npu:0'" in shown
    # Blanks are left out: the longer line may break earlier.
    values = "".join(shown.split()).replace(",device='npu:0'", "")
    assert values == "".join(repr(tensor).split())


def test_gradients_and_parameters_are_named():
    leaf = torch.ones(2, device="npu", requires_grad=True)
    assert repr(leaf) == "tensor([1., 1.], device='npu:0', requires_grad=True)"
    assert "grad_fn=<MulBackward0>" in repr(leaf * 2)
    shown = repr(torch.nn.Parameter(torch.ones(1, device="npu")))
    assert shown == "Parameter containing:\ntensor([1.], device='npu:0', requires_grad=True)"


def test_format_and_item_are_plain_numbers():
    assert f"{torch.tensor(1.5, device='npu'):.3f}" == "1.500"
    assert str(torch.tensor(3, device="npu").item()) == "3"


def test_print_options_hold():
    with torch._tensor_str.printoptions(precision=2, sci_mode=False):
        shown = repr(torch.tensor([1 / 3], device="npu"))
    assert shown == "tensor([0.33], device='npu:0')"


def test_a_storage_tells_its_device():
    shown = repr(torch.tensor([1, 2], dtype=torch.uint8, device="npu").untyped_storage())
    assert "device=npu:0" in shown
    assert " 1\n 2\n" in shown


def test_a_module_says_nothing_of_devices():
    assert repr(torch.nn.Linear(2, 3).to("npu")) == repr(torch.nn.Linear(2, 3))


def test_a_default_device_changes_nothing():
    with torch.device("npu"):
        assert repr(torch.ones(1)) == "tensor([1.], device='npu:0')"
        assert repr(torch.ones(1, device="cpu")) == "tensor([1.])"
