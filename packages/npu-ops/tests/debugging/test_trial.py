import torch

from npu_ops.debugging.trial import Snapshot


def test_restored_tensors_share_memory_as_the_originals_do() -> None:
    base = torch.arange(12.0, device="npu")
    rows, column = base.view(3, 4), base.view(3, 4)[:, 1]
    first, second = Snapshot.take((rows, column)).restore("cpu")
    second.fill_(-1)
    assert first[:, 1].tolist() == [-1.0] * 3
    assert second.stride() == (4,)
    assert base[1].item() == 1.0


def test_only_what_tensors_reach_is_copied() -> None:
    base = torch.zeros(10_000, device="npu")
    assert Snapshot.take([base[5000:5010]]).size_bytes < 100
    assert Snapshot.take([base[5000:5010]], is_whole=True).size_bytes == 40_000


def test_wide_tensors_hold_the_same_values_and_still_share() -> None:
    base = torch.arange(6, device="npu").to(torch.bfloat16) / 3
    one, two, dtype = Snapshot.take((base, base[2:], torch.bfloat16)).restore(is_wide=True)
    assert one.dtype is two.dtype is dtype is torch.float64
    assert torch.equal(one, base.cpu().double())
    two.zero_()
    assert one[2:].tolist() == [0.0] * 4


def test_memory_that_is_read_as_two_dtypes_stays_as_it_is() -> None:
    base = torch.ones(4, device="npu")
    assert Snapshot.take([base]).can_widen
    assert not Snapshot.take([base, base.view(torch.int32)]).can_widen
    assert not Snapshot.take([torch.ones(4, device="npu", dtype=torch.int64)]).can_widen


def test_conjugates_negatives_and_empty_tensors_come_back() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j], device="npu")
    tree = (z.conj(), z.conj().imag, torch.empty(0, 3, device="npu"))
    conjugate, negative, empty = Snapshot.take(tree).restore("cpu")
    assert torch.equal(conjugate, z.cpu().conj())
    assert torch.equal(negative, z.cpu().conj().imag)
    assert empty.shape == (0, 3)


def test_devices_and_generators_move_along() -> None:
    generator = torch.Generator("npu").manual_seed(4)
    device, copy = Snapshot.take((torch.device("npu:0"), generator)).restore("cpu")
    assert device == torch.device("cpu")
    expected = torch.rand(3, generator=torch.Generator().manual_seed(4))
    assert torch.equal(torch.rand(3, generator=copy), expected)
