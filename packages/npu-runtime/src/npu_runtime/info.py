"""Which device serves as npu, and why.

The choice is made by the driver (csrc/driver). A command that runs without torch asks OpenVINO
itself, and the driver only where that does not tell.
"""

import functools
import importlib.metadata
import operator
from dataclasses import dataclass
from typing import Any

from npu_command.import_hooks import is_bare, load_packages
from npu_runtime.config import config, problem
from npu_runtime.errors import DeviceError
from npu_runtime.openvino_devices import architecture_of, serving_device
from npu_runtime.plugins import openvino_library, vendor_entry_points
from npu_runtime.public_calls import public_call
from npu_runtime_autoload.torch_version import is_built_for

__all__ = ["DeviceInfo", "device_info", "npu_architecture"]


@dataclass(frozen=True)
class DeviceInfo:
    """One npu device.

    Attributes:
        name: torch's name of it, for example ``npu:0``.
        driver: the driver that serves it, for example ``openvino``.
        device: the driver's own name, for example ``NPU`` or ``CPU``.
        full_name: the product.
        driver_version: version of the vendor's software.
        capabilities: what the vendor says the device computes in, for example ``("FP32", "BF16")``.
        memory_bytes: memory that it can use; 0 when unknown.
        reason: one clause that says why this device serves.
    """

    name: str
    driver: str
    device: str
    full_name: str
    driver_version: str
    capabilities: tuple[str, ...]
    memory_bytes: int
    reason: str


@public_call
def device_info(index: int = 0) -> DeviceInfo:
    """Describes a device; opens the driver on first use.

    Raises:
        DeviceError: no device can serve (code ``device-absent``), or the index does not exist
            (``device-index``).
    """
    if not -(2**31) <= index < 2**31:  # what a native index holds
        raise DeviceError(
            "npu_runtime.device_info: index must fit in 32 bits; got a number of "
            f'{operator.index(index).bit_length()} bits, which does not exist. Use "npu:0".',
            code="device-index",
        )
    is_without_torch = index == 0 and is_bare("npu_runtime")
    properties = (_asked_without_torch() if is_without_torch else None) or _opened(index)
    return DeviceInfo(
        name=f"npu:{index}",
        driver=properties["driver"],
        device=properties["device"],
        full_name=properties["full_name"].strip(),
        driver_version=properties["driver_version"],
        capabilities=tuple(properties["capabilities"].split()),
        memory_bytes=properties["memory_bytes"],
        reason=properties["reason"],
    )


@functools.cache
def npu_architecture() -> str:
    """Returns the generation of the NPU that serves, such as "4000"; "" for other devices."""
    serving = device_info()
    if serving.driver != "openvino" or not serving.device.startswith("NPU"):
        return ""
    return architecture_of(openvino_library(), serving.device)


def _opened(index: int) -> dict[str, Any]:
    load_packages()  # a program that imported npu_runtime has them
    from npu_runtime import _C  # late: it needs torch's libraries

    return _C.device_properties(index)


@functools.cache
def _asked_without_torch() -> dict[str, Any] | None:
    """What OpenVINO says; None where another driver may serve, or none can."""
    if problem is not None or not is_built_for(importlib.metadata.version("torch")):
        return None
    # A library of the user's own must pass the driver's checks.
    if config.driver not in ("", "openvino") or config.openvino_library:
        return None
    if not config.driver and vendor_entry_points():
        return None
    return serving_device(openvino_library(), config.device)
