"""Whether an NPU serves, and with which driver."""

from __future__ import annotations

import re
from typing import Any

import npu_runtime
from npu_llm.compat.absent import absent_name
from npu_runtime.errors import DeviceError

__all__ = ["get_driver_version", "npu_available"]


def npu_available() -> bool:
    """Whether an NPU serves, and not a processor in its place."""
    try:
        return npu_runtime.device_info(0).device.startswith("NPU")
    except DeviceError:
        return False


def get_driver_version() -> int:
    """Returns the number of the NPU's driver.

    Raises:
        DeviceError: [device-absent] where no NPU serves.
    """
    if not npu_available():
        raise DeviceError(
            "get_driver_version: must have an NPU, whose driver it tells; got none that serves. "
            "`npu-runtime doctor` says why.",
            code="device-absent",
        )
    numbers = re.findall(r"\d+", npu_runtime.device_info(0).driver_version)
    return int(numbers[-1]) if numbers else 0


def __getattr__(name: str) -> Any:
    raise absent_name(__name__, name)
