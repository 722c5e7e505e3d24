"""Tensors that are watched for a change."""

from __future__ import annotations

import os

import pytest
import torch

from npu_runtime import _C, FrozenTensors, InputError


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


@pytest.fixture(params=[True, False], ids=["pages", "bytes"])
def _either_way(request):
    _C.want_written_pages(request.param)
    yield
    _C.want_written_pages(True)


def alias(tensor):
    """The elements, written without a version."""
    return tensor.numpy().reshape(-1)


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("count", [1, 900, 5000, 300_000])
def test_every_byte_counts(count):
    tensor = torch.zeros(count)
    for place in {0, count // 2, count - 1}:
        frozen = FrozenTensors([3], [tensor])
        inputs = [None, None, None, tensor]
        assert frozen.is_current(inputs)
        alias(tensor)[place] += 1
        assert not frozen.is_current(inputs)
        assert frozen.changed(inputs) == [3]
        alias(tensor)[place] -= 1
        assert not frozen.is_current(inputs)  # it was seen to change


@pytest.mark.usefixtures("_either_way")
def test_equal_bytes_are_no_change():
    tensor = torch.zeros(300_000)
    frozen = FrozenTensors([0], [tensor])
    for _ in range(3):
        alias(tensor)[:] = 0
        assert frozen.is_current([tensor])
    alias(tensor)[299_990] = 1
    assert not frozen.is_current([tensor])


@pytest.mark.usefixtures("_either_way")
def test_what_others_watch_in_the_same_pages_is_not_lost():
    tensor = torch.zeros(300_000)
    part = tensor[1000:200_000]
    whole, inner = FrozenTensors([0], [tensor]), FrozenTensors([0], [part])
    alias(tensor)[1500] = 1
    assert not inner.is_current([part])
    assert not whole.is_current([tensor])
    whole, inner = FrozenTensors([0], [tensor]), FrozenTensors([0], [part])
    del inner  # watches no longer, the other does
    alias(tensor)[1500] = 2
    assert not whole.is_current([tensor])
    whole, inner = FrozenTensors([0], [tensor]), FrozenTensors([0], [part])
    alias(tensor)[250_000] = 1
    assert inner.is_current([part])
    assert not whole.is_current([tensor])


def test_writes_of_the_system_count(tmp_path):
    tensor = torch.zeros(300_000)
    (tmp_path / "bytes").write_bytes(b"1" * 64)
    frozen = FrozenTensors([0], [tensor])
    with (tmp_path / "bytes").open("rb", buffering=0) as file:
        file.readinto(memoryview(alias(tensor)[7000:7016]).cast("B"))
    assert not frozen.is_current([tensor])


def test_a_forked_child_sees_its_own_writes_and_the_parent_its_own():
    tensor = torch.zeros(300_000)
    frozen = FrozenTensors([0], [tensor])
    child = os.fork()
    if child == 0:
        was_current = frozen.is_current([tensor])
        alias(tensor)[9000] = 1
        os._exit(0 if was_current and not frozen.is_current([tensor]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert frozen.is_current([tensor])
    alias(tensor)[9000] = 1
    assert not frozen.is_current([tensor])


def test_a_storage_that_lost_its_memory_is_a_change():
    tensor = torch.zeros(300_000)
    frozen = FrozenTensors([0], [tensor])
    tensor.untyped_storage().resize_(0)
    assert not frozen.is_current([tensor])
    assert frozen.changed([tensor]) == [0]


def test_bytes_are_looked_at_when_suspected_alone():
    tensor = torch.zeros(300_000)
    frozen = FrozenTensors.unwatched([0], [tensor])
    alias(tensor)[5] = 1
    assert frozen.is_current([tensor])
    FrozenTensors.suspect_all()
    assert not frozen.is_current([tensor])


def test_strided_and_empty_tensors_are_watched():
    matrix = torch.zeros(300, 1000)
    tensors = [matrix[:, ::2], matrix.t(), torch.empty(0, 5), torch.tensor(1.0)]
    frozen = FrozenTensors([0, 1, 2, 3], tensors)
    assert frozen.is_current(tensors)
    matrix.data[299, 998] = 1
    assert frozen.changed(tensors) == [0, 1]
