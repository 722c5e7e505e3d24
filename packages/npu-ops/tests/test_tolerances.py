"""Each exception of the conformance run, shown to be torch's."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

from npu_ops.tolerances import EXPECTED


def loss(device, dtype, **options):
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(*shape, generator=generator).to(device, dtype) for shape in ((8, 5), (7, 5))
    )
    target = torch.arange(8, device=device) % 7
    chosen = LinearCrossEntropyOptions(batch_chunk_size=2, **options)
    return F.linear_cross_entropy(x, weight, target, options=chosen, reduction="none").cpu()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_chunked_loss_equals_the_cpu_once_torch_need_not_choose_by_the_devices_name(dtype):
    options = {"acc_policy": "accurate", "acc_dtype": torch.float32}
    torch.testing.assert_close(loss("npu", dtype, **options), loss("cpu", dtype, **options))


def test_torch_splits_at_indices_on_the_cpu_alone():
    indices = torch.tensor([1, 2])
    parts = torch.tensor_split(torch.arange(3.0, device="npu"), indices)
    assert [part.device.type for part in parts] == ["npu"] * 3
    with pytest.raises(RuntimeError, match="to be on cpu"):
        torch.tensor_split(torch.arange(3.0, device="npu"), indices.to("npu"))


def test_every_exception_names_a_cell_and_a_reason():
    for (subject, dtype, check), reason in EXPECTED.items():
        assert subject
        assert check
        assert isinstance(getattr(torch, dtype), torch.dtype)
        assert reason
