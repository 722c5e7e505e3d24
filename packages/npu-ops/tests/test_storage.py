import pytest
import torch


def test_set_to_another_tensor_shares_its_storage():
    source, target = torch.arange(6.0, device="npu"), torch.empty(0, device="npu")
    target.set_(source)
    target[0] = 9
    assert source[0].item() == 9


def test_set_to_storage_with_geometry():
    source = torch.arange(6.0, device="npu")
    target = torch.empty(0, device="npu").set_(source.untyped_storage(), 1, (2, 2), (2, 1))
    assert target.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_set_to_nothing():
    target = torch.ones(3, device="npu").set_()
    assert target.shape == (0,)
    assert target.device.type == "npu"


def test_set_refuses_a_storage_on_another_device():
    with pytest.raises(RuntimeError, match="device"):
        torch.empty(0, device="npu").set_(torch.ones(2).untyped_storage(), 0, (2,))


def test_growing_keeps_the_values_and_shrinking_keeps_the_memory():
    tensor = torch.arange(4.0, device="npu")
    tensor.resize_(1000)
    assert tensor[:4].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert tensor.untyped_storage().nbytes() == 4000
    tensor.resize_(2)
    assert tensor.tolist() == [0.0, 1.0]
    assert tensor.untyped_storage().nbytes() == 4000


def test_storage_resize_is_seen_by_kernels():
    tensor = torch.arange(4.0, device="npu")
    assert (tensor + 1).tolist() == [1.0, 2.0, 3.0, 4.0]  # an alias of the old block exists now
    tensor.untyped_storage().resize_(4 * 4000)
    tensor.resize_(4000)
    assert (tensor.fill_(2.0) + 1).sum().item() == 12000


def test_a_freed_storage_can_be_filled_again():
    tensor = torch.ones(8, device="npu")
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(32)
    tensor.copy_(torch.arange(8.0))
    assert tensor.sum().item() == 28


def test_out_argument_is_resized_and_its_views_follow_the_new_memory():
    out = torch.empty(0, device="npu")
    torch.add(torch.ones(3000, device="npu"), 1, out=out)
    assert out.shape == (3000,)
    assert out.device.type == "npu"
    assert out.untyped_storage().device.type == "npu"
    assert out.sum().item() == 6000
    assert out.view(3, 1000).mul_(2).sum().item() == 12000
    assert out.sum().item() == 12000


def test_out_argument_of_the_wrong_size_warns_as_on_cpu():
    out = torch.empty(2, device="npu")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(torch.ones(5, device="npu"), 1, out=out)
    assert out.tolist() == [2.0] * 5


def test_resizing_an_output_that_is_a_view_of_memory_from_elsewhere():
    out = torch.ones(4, device="npu")
    out.resize_(0)
    torch.cat([torch.ones(500, device="npu"), torch.zeros(500, device="npu")], out=out)
    assert (out.shape, out.sum().item()) == ((1000,), 500)


def test_swap_of_parameter_data():
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.data = torch.ones(3, device="npu")
    assert parameter.device.type == "npu"
    assert parameter.tolist() == [1.0] * 3


def test_untyped_storage_moves_between_devices():
    storage = torch.arange(4, dtype=torch.uint8).untyped_storage()
    there = torch.empty(0, dtype=torch.uint8, device="npu").set_(
        torch.tensor([1, 2], dtype=torch.uint8).to("npu").untyped_storage()
    )
    assert there.tolist() == [1, 2]
    assert there.untyped_storage().cpu().tolist() == [1, 2]
    assert storage.tolist() == [0, 1, 2, 3]


def test_a_tensor_without_its_memory_is_an_error_not_a_crash():
    tensor = torch.ones(8, device="npu")
    tensor.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"8 elements must not be empty.*\[storage-freed\]"):
        tensor + 1
    with pytest.raises(RuntimeError, match="storage-freed"):
        tensor.cpu()


def test_record_stream_is_accepted():
    tensor = torch.ones(2, device="npu")
    tensor.record_stream(torch.npu.current_stream())
    assert tensor.tolist() == [1.0, 1.0]


def test_npu_memory_is_not_pinned_and_cannot_be():
    tensor = torch.ones(2, device="npu")
    assert not tensor.is_pinned()
    with pytest.raises(RuntimeError, match="cannot pin"):
        tensor.pin_memory()
