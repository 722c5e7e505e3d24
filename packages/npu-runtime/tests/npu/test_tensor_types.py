"""Constructors of old code: torch.npu.FloatTensor."""

import pytest
import torch

from npu_runtime import InputError


def test_sizes_sequences_and_tensors_make_one():
    assert torch.npu.FloatTensor(2, 3).shape == (2, 3)
    assert torch.npu.LongTensor([1, 2]).tolist() == [1, 2]
    made = torch.npu.HalfTensor([1.5])
    assert (made.device, made.dtype) == (torch.device("npu:0"), torch.float16)


@pytest.mark.parametrize(
    "name, argument", [("CharTensor", [2**63]), ("BoolTensor", -3), ("FloatTensor", [[1], [2, 3]])]
)
def test_sizes_and_values_that_torch_refuses_are_told_with_a_code(name, argument):
    with pytest.raises(InputError, match=rf"torch\.npu\.{name}: arguments must be") as caught:
        getattr(torch.npu, name)(argument)
    assert caught.value.code == "tensor-arguments"


def test_isinstance_tells_device_and_dtype_apart():
    tensor = torch.ones(2, device="npu")
    assert isinstance(tensor, torch.npu.FloatTensor)
    assert not isinstance(tensor, torch.npu.HalfTensor)
    assert not isinstance(tensor.cpu(), torch.npu.FloatTensor)
    assert not isinstance(tensor.to_sparse(), torch.npu.FloatTensor)


@pytest.mark.parametrize("name", ["FloatTensor", "BFloat16Tensor", "BoolTensor", "LongTensor"])
def test_type_converts_by_class_and_by_name(name):
    kind = getattr(torch.npu, name)
    for target in (kind, f"torch.npu.{name}"):
        made = torch.arange(3).type(target)
        assert isinstance(made, kind)
        assert made.type() == f"torch.npu.{name}"
