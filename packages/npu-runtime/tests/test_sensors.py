"""The kernel's data about an NPU, read from a fake machine."""

import threading

import pytest
import torch

from npu_runtime import DeviceError, sensors
from npu_runtime.info import DeviceInfo


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with the first NPU as its second accelerator, with intel_vpu's files."""
    info = DeviceInfo("npu:0", "openvino", "NPU", "product", "1", (), 0, "it is there")
    monkeypatch.setattr(sensors, "device_info", lambda index: info)
    for node, driver in (("accel0", "habanalabs"), ("accel1", "intel_vpu")):
        device = tmp_path / "sys/class/accel" / node / "device"
        device.mkdir(parents=True)
        (tmp_path / "drivers" / driver).mkdir(parents=True)
        (device / "driver").symlink_to(tmp_path / "drivers" / driver)
    (device / "npu_busy_time_us").write_text("1000000\n")
    (device / "npu_current_frequency_mhz").write_text("1400\n")
    (device / "npu_memory_utilization").write_text("4096000\n")
    for process, name in ((7, "train"), (12, "shell")):
        (tmp_path / "proc" / str(process) / "fd").mkdir(parents=True)
        (tmp_path / "proc" / str(process) / "comm").write_text(f"{name}\n")
    (tmp_path / "proc/meminfo").touch()
    (tmp_path / "proc/7/fd/3").symlink_to("/dev/accel/accel1")
    (tmp_path / "proc/12/fd/3").symlink_to("/dev/accel/accel0")
    return tmp_path


def counters(machine):
    return machine / "sys/class/accel/accel1/device"


def test_clock_and_memory_are_the_files_numbers(machine):
    assert sensors.clock_rate_mhz(0, root=machine) == 1400
    assert sensors.memory_used_bytes(0, root=machine) == 4_096_000


def test_busy_time_becomes_percent_of_what_passed(machine):
    busy = counters(machine) / "npu_busy_time_us"
    assert sensors.busy_percent(0, root=machine, window_s=0.01) == 0
    work = threading.Timer(0.05, lambda: busy.write_text("1100000\n"))
    work.start()
    percent = sensors.busy_percent(0, root=machine, window_s=0.2)
    work.join()
    assert 10 <= percent <= 50  # 0.1 s of 0.2 s, and of more where this machine is slow


def test_more_busy_time_than_passed_is_all_of_it(machine):
    busy = counters(machine) / "npu_busy_time_us"
    work = threading.Timer(0.01, lambda: busy.write_text("9000000\n"))
    work.start()
    assert sensors.busy_percent(0, root=machine, window_s=0.1) == 100
    work.join()


def test_processes_are_those_that_have_this_node_open(machine):
    assert sensors.processes(0, root=machine) == {7: "train"}


def test_an_older_kernel_is_named(machine):
    (counters(machine) / "npu_current_frequency_mhz").unlink()
    with pytest.raises(DeviceError, match="no file npu_current_frequency_mhz") as caught:
        sensors.clock_rate_mhz(0, root=machine)
    assert caught.value.code == "sensor-absent"


def test_a_system_without_such_files_is_named(machine, tmp_path):
    with pytest.raises(DeviceError, match="lists 0 NPUs") as caught:
        sensors.memory_used_bytes(0, root=tmp_path / "elsewhere")
    assert caught.value.code == "sensor-absent"


CALLS = ("utilization", "clock_rate", "device_memory_used", "list_gpu_processes")


@pytest.mark.parametrize("call", CALLS)
def test_a_device_that_is_no_npu_has_no_reading(call):
    with pytest.raises(DeviceError, match="only an Intel NPU has this reading") as caught:
        getattr(torch.npu, call)()
    assert caught.value.code == "sensor-absent"
    assert f"torch.npu.{call}:" in str(caught.value)


def test_the_list_of_processes_is_a_text_as_of_torch_cuda(monkeypatch):
    monkeypatch.setattr(sensors, "processes", lambda index: {7: "train"})
    assert torch.npu.list_gpu_processes(0) == "NPU:0\nprocess          7 (train)"
    monkeypatch.setattr(sensors, "processes", lambda index: {})
    assert torch.npu.list_gpu_processes("npu") == "NPU:0\nno processes are running"


@pytest.mark.parametrize("call", ["power_draw", "temperature", "memory_usage"])
def test_what_nothing_reports_says_so(call):
    with pytest.raises(AttributeError, match=r"neither OpenVINO nor|is not counted"):
        getattr(torch.npu, call)
