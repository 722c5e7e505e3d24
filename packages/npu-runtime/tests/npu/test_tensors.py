"""Views of tensors that share their bytes, and the types of old code."""

import gc

import pytest
import torch

from npu_runtime import InputError


def test_as_cpu_shows_the_same_bytes():
    tensor = torch.arange(6.0, device="npu").reshape(2, 3)
    view = torch.npu.as_cpu(tensor)
    assert view.device.type == "cpu"
    assert view.data_ptr() == tensor.data_ptr()
    view[0, 0] = 40
    tensor[1, 1] = 50
    assert tensor[0, 0].item() == 40
    assert view[1, 1].item() == 50


SHAPES = {
    "transposed": lambda x: x.t(),
    "strided": lambda x: x[1:, ::2],
    "expanded": lambda x: x.expand(2, 4, 6),
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_as_cpu_keeps_shape_strides_and_offset(shape):
    tensor = SHAPES[shape](torch.arange(24, device="npu").reshape(4, 6))
    view = torch.npu.as_cpu(tensor)
    assert (view.shape, view.stride(), view.storage_offset()) == (
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
    )
    assert torch.equal(view, tensor.cpu())


@pytest.mark.parametrize("flag", ["conj", "_neg_view"])
def test_as_cpu_keeps_lazy_signs(flag):
    tensor = getattr(torch.tensor([1 + 2j, 3 - 4j], device="npu"), flag)()
    assert torch.equal(torch.npu.as_cpu(tensor), tensor.cpu())


def test_a_view_keeps_the_memory_alive():
    view = torch.npu.as_cpu(torch.ones(5000, device="npu"))
    gc.collect()
    filler = [torch.zeros(5000, device="npu") for _ in range(4)]
    assert view.sum().item() == 5000
    assert len(filler) == 4


def test_as_npu_shows_pinned_memory():
    pinned = torch.arange(3.0).pin_memory()
    view = torch.npu.as_npu(pinned)
    assert view.device == torch.device("npu:0")
    view *= 2
    assert pinned.tolist() == [0, 2, 4]
    assert (view @ view).item() == 20


def test_a_view_of_a_view_is_where_it_began():
    tensor = torch.ones(3, device="npu")
    assert torch.npu.as_npu(torch.npu.as_cpu(tensor)).data_ptr() == tensor.data_ptr()


def test_ordinary_memory_is_refused():
    with pytest.raises(InputError, match="pin_memory=True") as caught:
        torch.npu.as_npu(torch.ones(3))
    assert caught.value.code == "view-memory"


@pytest.mark.parametrize("function, place", [("as_cpu", "cpu"), ("as_npu", "npu")])
def test_a_tensor_from_elsewhere_is_refused(function, place):
    with pytest.raises(InputError, match=f"got one on {place}") as caught:
        getattr(torch.npu, function)(torch.ones(3, device=place))
    assert caught.value.code == "view-device"


def test_a_sparse_tensor_is_refused():
    with pytest.raises(InputError, match="Sparse") as caught:
        torch.npu.as_cpu(torch.eye(3, device="npu").to_sparse())
    assert caught.value.code == "view-layout"


def test_a_view_cannot_grow():
    with pytest.raises(RuntimeError, match="not resizable"):
        torch.npu.as_cpu(torch.ones(3, device="npu")).resize_(1000)


def test_the_storage_of_a_view_of_pinned_memory_cannot_grow():
    storage = torch.npu.as_npu(torch.ones(3).pin_memory()).untyped_storage()
    with pytest.raises(RuntimeError, match=r"must own its memory.*\[storage-view\]"):
        storage.resize_(1000)


def test_no_gradient_flows_through_a_view():
    leaf = torch.ones(3, device="npu", requires_grad=True)
    assert not torch.npu.as_cpu(leaf).requires_grad
    assert not torch.npu.as_cpu(leaf * 2).requires_grad


def test_writing_through_a_view_is_found_by_autograd():
    leaf = torch.ones(3, device="npu", requires_grad=True)
    saved = leaf * 1
    squared = saved * saved
    torch.npu.as_cpu(saved).zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


def test_views_exist_in_inference_mode():
    with torch.inference_mode():
        tensor = torch.ones(3, device="npu")
        torch.npu.as_cpu(tensor)[0] = 5
        assert tensor[0].item() == 5


def test_a_lazy_clone_is_parted_before_it_is_viewed():
    tensor = torch.ones(3, device="npu")
    clone = torch._lazy_clone(tensor)
    torch.npu.as_cpu(clone)[0] = 5
    assert tensor[0].item() == 1


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
