import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from npu_runtime import cuda_compat


@pytest.mark.parametrize(
    "activity", [ProfilerActivity.CUDA, {ProfilerActivity.CUDA: ["GPU_MEMCPY"]}]
)
def test_profiling_cuda_profiles_npu(activity):
    host = torch.ones(16)
    with (
        cuda_compat.transferred(),
        profile(activities=[ProfilerActivity.CPU, activity]) as profiler,
    ):
        host.to("cuda")
    on_device = [e.name for e in profiler.events() if e.device_type == DeviceType.PrivateUse1]
    assert on_device == ["cpu to npu"]
    assert "Self NPU" in profiler.key_averages().table(sort_by="cuda_time_total")


@pytest.mark.parametrize("option", [{"use_cuda": True}, {"use_device": "cuda"}])
def test_the_older_profiler_times_npu(option):
    x = torch.ones(16, device="npu")
    with cuda_compat.transferred(), torch.autograd.profiler.profile(**option) as profiler:
        x.roll(1)
    (average,) = [row for row in profiler.key_averages() if row.key == "aten::roll"]
    assert average.device_time_total > 0


def test_a_profile_of_the_cpu_stays_one():
    with cuda_compat.transferred(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(16).to("cuda")
    assert all(event.device_type == DeviceType.CPU for event in profiler.events())
