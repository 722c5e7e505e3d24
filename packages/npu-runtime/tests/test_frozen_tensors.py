"""Tensors that are watched for a change."""

from __future__ import annotations

import pytest
import torch

from npu_runtime import FrozenTensors, InputError


@pytest.fixture(params=["cpu", "npu"])
def tensors(request):
    return [torch.ones(3, device=request.param), torch.ones(2, 2, device=request.param)]


def test_untouched_tensors_are_current(tensors):
    frozen = FrozenTensors([0, 2], tensors)
    inputs = [tensors[0], "anything", tensors[1]]
    assert frozen.positions == [0, 2]
    assert frozen.is_current(inputs)
    assert frozen.is_current(tuple(inputs))
    assert frozen.changed(inputs) == []


def test_written_tensor_is_named(tensors):
    frozen = FrozenTensors([0, 1], tensors)
    tensors[1].add_(1)
    assert not frozen.is_current(tensors)
    assert frozen.changed(tensors) == [1]


def test_other_memory_is_seen(tensors):
    parameter = torch.nn.Parameter(tensors[0])
    frozen = FrozenTensors([0], [parameter])
    parameter.data = torch.ones_like(tensors[0])
    assert frozen.changed([parameter]) == [0]


def test_view_of_the_same_memory_elsewhere_is_seen():
    whole = torch.arange(6.0)
    frozen = FrozenTensors([0], [whole[:3]])
    assert frozen.is_current([whole[:3]])
    assert not frozen.is_current([whole[3:]])


def test_what_is_no_tensor_or_is_missing_is_a_change(tensors):
    frozen = FrozenTensors([0, 1], tensors)
    assert frozen.changed([tensors[0]]) == [1]
    assert frozen.changed([None, tensors[1]]) == [0]
    assert frozen.changed([]) == [0, 1]


def test_memory_stays_taken():
    tensor = torch.ones(1000)
    address = tensor.data_ptr()
    frozen = FrozenTensors([0], [tensor])
    del tensor
    others = [torch.ones(1000) for _ in range(8)]
    assert address not in [other.data_ptr() for other in others]
    assert not frozen.is_current(others[:1])


def test_lists_of_unequal_length_are_an_error():
    with pytest.raises(InputError, match="1 positions and 2 tensors") as caught:
        FrozenTensors([0], [torch.ones(1), torch.ones(1)])
    assert caught.value.code == "frozen-positions"


def test_tensor_without_versions_is_an_error():
    with torch.inference_mode():
        tensor = torch.ones(1)
    with pytest.raises(InputError) as caught:
        FrozenTensors([0], [tensor])
    assert caught.value.code == "frozen-tensor"
    assert not FrozenTensors([0], [torch.ones(1)]).is_current([tensor])
