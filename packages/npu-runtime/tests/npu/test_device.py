import pytest
import torch

import npu_runtime
from npu_runtime import DeviceError, InputError


def test_the_device_is_the_accelerator(device_count):
    assert torch.npu.is_available()
    assert torch.npu.device_count() == device_count
    assert torch.accelerator.current_accelerator() == torch.device("npu")


def test_the_current_device_is_the_first():
    assert torch.npu.current_device() == 0
    with torch.npu.device("npu:0"):
        assert torch.npu.current_device() == 0
    with torch.npu.device(None):
        assert torch.npu.current_device() == 0


@pytest.mark.parametrize("index", [2, 7, "npu:3"])
def test_an_index_that_does_not_exist_is_refused(index):
    with pytest.raises(DeviceError, match="does not exist") as caught:
        torch.npu.set_device(index)
    assert caught.value.code == "device-index"
    assert torch.npu.current_device() == 0


@pytest.mark.parametrize("index", [2**31, -(10**30), 2**1023], ids=int.bit_length)
def test_an_index_that_no_device_can_have_is_refused(index):
    with pytest.raises(DeviceError, match=f"{index.bit_length()} bits") as caught:
        npu_runtime.device_info(index)
    assert caught.value.code == "device-index"


def test_a_number_that_cannot_be_written_out_is_no_device():
    with pytest.raises(InputError, match=r"got 0x[0-9a-f]+\.\.\. \(int\)") as caught:
        torch.npu.set_device(10**5000)
    assert caught.value.code == "device-type"


def test_a_device_of_another_type_is_refused():
    with pytest.raises(InputError, match="cpu") as caught:
        torch.npu.synchronize("cpu")
    assert caught.value.code == "device-type"


@pytest.mark.driver("openvino", "names this driver")
def test_properties_name_the_product_and_its_driver():
    properties = torch.npu.get_device_properties()
    assert properties.name == torch.npu.get_device_name() == npu_runtime.device_info().full_name
    assert properties.driver == "openvino"
    assert properties.total_memory > 2**30
    assert "FP32" in torch.npu.get_device_capability()


@pytest.mark.driver("openvino", "tells why OpenVINO's CPU serves")
def test_the_choice_has_a_reason():
    assert "CPU plugin" in npu_runtime.device_info().reason


@pytest.mark.driver("openvino", "sim has no device CPU")
def test_asking_for_the_cpu_says_so(run_python):
    done = run_python(
        "import npu_runtime; i = npu_runtime.device_info(); print(i.device, '|', i.reason)",
        NPU_DEVICE="CPU",
    )
    assert done.stdout.strip() == "CPU | NPU_DEVICE=CPU requests it", done.stderr


def test_asking_for_an_absent_device_is_an_error_and_no_other_device(run_python):
    done = run_python(
        "import torch\n"
        "print(torch.npu.is_available(), torch.npu.device_count())\n"
        "torch.empty(1, device='npu')",
        NPU_DEVICE="GPU",
    )
    assert done.stdout.split() == ["False", "0"]
    assert done.returncode == 1
    assert "NPU_DEVICE=GPU was requested" in done.stderr
    assert "[device-absent]" in done.stderr


def test_seeding_torch_without_a_device_works(run_python):
    done = run_python("import torch; torch.manual_seed(3); print('ok')", NPU_DEVICE="GPU")
    assert done.stdout.strip() == "ok", done.stderr


def test_importing_opens_no_device_and_starts_no_thread(run_python):
    done = run_python(
        "import torch, os, sys\n"
        "maps = open('/proc/self/maps').read()\n"
        "print('libopenvino' in maps, torch.npu.is_initialized())"
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_init_opens_the_driver():
    torch.npu.init()
    assert torch.npu.is_initialized()
    torch.npu.synchronize()


def test_a_dtype_of_autocast_is_supported():
    assert torch.npu.is_bf16_supported()
    assert torch.bfloat16 in torch.npu.get_amp_supported_dtype()


def test_events_time_and_streams_are_the_default_one():
    start = torch.npu.Event(enable_timing=True)
    end = torch.npu.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    assert end.query()
    assert 0 <= start.elapsed_time(end) < 1000
    assert torch.npu.current_stream() == torch.npu.default_stream()
    assert torch.npu.current_stream().device == torch.device("npu:0")
    with torch.npu.stream(torch.npu.current_stream()):
        torch.npu.current_stream().synchronize()


@pytest.mark.parametrize("device", ["float8", "npu:-1", "", "\0", "x" * 100_000, 2**31, 1.5, []])
def test_what_names_no_device_is_one_sentence(device):
    with pytest.raises(ValueError, match=r"name or an index, got .*\[device-type\]") as caught:
        torch.npu.memory_allocated(device)
    assert len(str(caught.value)) < 300
