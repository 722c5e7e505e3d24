"""Whether an NPU serves."""

import pytest

import npu_runtime
from npu_llm.compat.intel_npu_acceleration_library.backend import driver
from npu_llm.compat.intel_npu_acceleration_library.backend.driver import (
    get_driver_version,
    npu_available,
)
from npu_runtime.errors import DeviceError


def test_a_processor_in_its_place_is_no_npu():
    serves = npu_runtime.device_info(0).device.startswith("NPU")
    assert npu_available() is serves
    if not serves:
        with pytest.raises(DeviceError, match="must have an NPU") as error:
            get_driver_version()
        assert error.value.code == "device-absent"


def test_the_drivers_version_is_its_last_number(monkeypatch):
    class Info:
        device, driver_version = "NPU", "1.2.2408"

    monkeypatch.setattr(driver.npu_runtime, "device_info", lambda index: Info)
    assert get_driver_version() == 2408
