import numpy as np
import pytest
import torch


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (2, 3, 4)], ids=str)
def test_round_trip_keeps_bytes(shape):
    host = torch.randn(shape)
    there = host.to("npu")
    back = there.cpu()
    assert there.device.type == "npu"
    assert torch.equal(back, host)
    assert back.data_ptr() != there.data_ptr() or host.numel() == 0


@pytest.mark.parametrize(
    "target", [torch.float64, torch.bfloat16, torch.int32, torch.bool], ids=str
)
def test_copy_converts_the_dtype(target):
    host = torch.tensor([-1.5, 0.0, 2.25])
    assert torch.equal(host.to("npu", target).cpu(), host.to(target))
    assert torch.equal(host.to("npu").to("cpu", target), host.to(target))
    assert torch.equal(host.to("npu").to(target).cpu(), host.to(target))


def test_strided_source_and_destination():
    host = torch.arange(24.0).view(4, 6)
    destination = torch.zeros(6, 8, device="npu")[:, ::2]
    destination.copy_(host.t())
    assert torch.equal(destination.cpu(), host.t())
    assert destination.stride() == (8, 2)
    assert torch.equal(host.to("npu").t().cpu(), host.t())


def test_source_is_broadcast():
    destination = torch.zeros(3, 2, device="npu")
    destination.copy_(torch.tensor([1.0, 2.0]))
    assert destination.tolist() == [[1.0, 2.0]] * 3


def test_copy_between_two_parts_of_one_tensor():
    host = torch.arange(10.0)
    there = host.to("npu")
    host[:5].copy_(host[5:].clone())
    there[:5].copy_(there[5:])
    assert torch.equal(there.cpu(), host)


def test_copy_into_cpu_tensor():
    host = torch.zeros(3)
    host.copy_(torch.ones(3, device="npu"))
    assert host.tolist() == [1.0, 1.0, 1.0]


def test_conjugate_and_negative_views_are_resolved_on_the_way():
    host = torch.randn(4, dtype=torch.complex64)
    there = host.to("npu")
    assert torch.equal(there.conj().cpu().resolve_conj(), host.conj().resolve_conj())
    assert torch.equal(there.conj().imag.cpu().resolve_neg(), host.conj().imag.resolve_neg())


def test_numpy_goes_in_and_is_refused_on_the_way_out():
    there = torch.from_numpy(np.arange(3.0)).to("npu")
    assert there.cpu().numpy().tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(TypeError, match="can't convert npu:0 device type tensor to numpy"):
        there.numpy()


def test_non_blocking_copies_are_complete_on_return():
    host = torch.randn(1000)
    assert torch.equal(host.to("npu", non_blocking=True).to("cpu", non_blocking=True), host)


def test_clone_has_memory_of_its_own():
    there = torch.zeros(3, device="npu")
    copy = there.clone()
    copy.add_(1)
    assert there.sum().item() == 0


def test_shapes_that_do_not_fit_are_an_error():
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(2\) must match"):
        torch.zeros(2, device="npu").copy_(torch.zeros(3))


def test_empty_tensor_of_another_layout_is_an_error():
    with pytest.raises(NotImplementedError, match=r"got layout Jagged.*\[empty-layout\]"):
        torch.empty(2, layout=torch.jagged, device="npu")


def test_copy_from_meta_is_an_error():
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.zeros(2, device="npu").copy_(torch.zeros(2, device="meta"))


def test_zeros_without_memory_are_copied():
    zeros = torch._efficientzerotensor(2, 3, device="npu")
    for target in (torch.ones(2, 3, device="npu"), torch.ones(2, 3)):
        assert target.copy_(zeros).sum() == 0
    out = torch.ones(2, 3, device="npu")
    torch.ops.aten._efficientzerotensor.out([2, 3], out=out)
    assert out.sum() == 0
