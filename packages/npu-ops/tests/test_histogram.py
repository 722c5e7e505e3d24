import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)
def test_integers_are_counted_and_keep_their_dtype(dtype):
    experts = torch.tensor([0, 3, 3, 1, 7, 3], dtype=dtype, device="npu")
    counts = torch.histc(experts, bins=8, min=0, max=7)
    assert counts.dtype == dtype
    assert counts.tolist() == [1, 1, 0, 3, 0, 0, 0, 1]


def test_floats_equal_the_cpu():
    x = torch.randn(1000)
    assert torch.equal(torch.histc(x.to("npu"), 20).cpu(), torch.histc(x, 20))
    assert torch.histc(x.to("npu"), 20, -1, 1).device.type == "npu"


def test_the_range_of_integers_defaults_to_theirs():
    assert torch.histc(torch.tensor([2, 4, 4], device="npu"), 2).tolist() == [1, 2]
