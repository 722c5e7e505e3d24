"""Describes the device in use as npu, and the reason for its choice.

The driver (csrc/driver) chooses it. Commands without torch call OpenVINO's C library, with the same
rules and texts as csrc/driver/openvino_devices.cpp, and the driver only if that library cannot
decide.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from npu_command.import_hooks import is_deferred, start_packages
from npu_runtime.config import config, problem
from npu_runtime.errors import DeviceError
from npu_runtime.plugins import openvino_library, vendor_entry_points
from npu_runtime.public_calls import public_call
from npu_runtime_autoload.torch_version import is_built_for

__all__ = ["DeviceInfo", "architecture_of", "device_info", "npu_architecture", "serving_device"]

_Found = TypeVar("_Found")

# Bytes of the driver table's texts, the closing zero among them (include/npu/driver.h).
_NAME, _FULL_NAME, _VERSION, _CAPABILITIES = 64, 256, 64, 256
_NPU_VERSION = 24
_ARCHITECTURE = "DEVICE_ARCHITECTURE"


class _Names(ctypes.Structure):
    """ov_available_devices_t."""

    _fields_ = (("devices", ctypes.POINTER(ctypes.c_char_p)), ("size", ctypes.c_size_t))


class _Version(ctypes.Structure):
    """ov_version_t."""

    _fields_ = (("build_number", ctypes.c_char_p), ("description", ctypes.c_char_p))


def serving_device(library: str, wanted: str) -> dict[str, Any] | None:
    """Describes the device that the driver openvino would open, for a name or its own choice.

    `library` is OpenVINO's C library. Returns what the extension module's `device_properties` does;
    None if there is no such device or OpenVINO fails: opening the device reports the reason.
    """
    return _asked(library, lambda openvino, core: _described(openvino, core, wanted))


def architecture_of(library: str, device: str) -> str:
    """Returns a device's architecture, such as "4000", by OpenVINO's C library; "" for none."""
    return (
        _asked(library, lambda openvino, core: _property(openvino, core, device, _ARCHITECTURE))
        or ""
    )


def _asked(
    library: str, ask: Callable[[ctypes.CDLL, ctypes.c_void_p], _Found | None]
) -> _Found | None:
    """Queries an OpenVINO core; None without the library or its functions."""
    try:
        openvino = ctypes.CDLL(library)
        core = ctypes.c_void_p()
        if openvino.ov_core_create(ctypes.byref(core)) != 0:
            return None
        try:
            return ask(openvino, core)
        finally:
            openvino.ov_core_free(core)
    except (OSError, AttributeError):
        return None


def _described(openvino: ctypes.CDLL, core: ctypes.c_void_p, wanted: str) -> dict[str, Any] | None:
    found = _choice(_device_names(openvino, core), wanted)
    if found is None:
        return None
    device, reason = found

    def asked(key: str, size: int) -> str | None:
        text = _property(openvino, core, device, key)
        return None if text is None else _cut(text.encode(), size)

    full_name = asked("FULL_DEVICE_NAME", _FULL_NAME)
    return {
        "driver": "openvino",
        "device": _cut(device.encode(), _NAME),
        "full_name": device if full_name is None else full_name,
        "driver_version": _driver_version(
            openvino,
            asked("NPU_DRIVER_VERSION", _NPU_VERSION) if device.startswith("NPU") else None,
        ),
        "capabilities": asked("OPTIMIZATION_CAPABILITIES", _CAPABILITIES) or "",
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "reason": reason,
    }


def _property(openvino: ctypes.CDLL, core: ctypes.c_void_p, device: str, key: str) -> str | None:
    value = ctypes.c_char_p()
    if openvino.ov_core_get_property(core, device.encode(), key.encode(), ctypes.byref(value)):
        return None
    text = (value.value or b"").decode("utf-8", "replace")
    openvino.ov_free(value)
    return text


def _device_names(openvino: ctypes.CDLL, core: ctypes.c_void_p) -> list[str]:
    names = _Names()
    if openvino.ov_core_get_available_devices(core, ctypes.byref(names)) != 0:
        return []
    found = [str(names.devices[index], "utf-8") for index in range(names.size)]
    openvino.ov_available_devices_free(ctypes.byref(names))
    return found


def _choice(names: list[str], wanted: str) -> tuple[str, str] | None:
    """Returns the device, and the reason for its choice."""
    if wanted:
        found = _first(names, wanted)
        return None if found is None else (found, f"NPU_DEVICE={wanted} requests it")
    npu = _first(names, "NPU")
    if npu is not None:
        return npu, "OpenVINO finds an NPU on this machine"
    cpu = _first(names, "CPU")
    if cpu is None:
        return None
    return (
        cpu,
        "OpenVINO finds no NPU on this machine, so its CPU plugin serves as the npu device",
    )


def _first(names: list[str], wanted: str) -> str | None:
    """Returns the first device of a kind; "NPU" also matches "NPU.0"."""
    return next((name for name in names if name == wanted or name.startswith(f"{wanted}.")), None)


def _driver_version(openvino: ctypes.CDLL, npu_driver: str | None) -> str:
    version = _Version()
    if openvino.ov_get_openvino_version(ctypes.byref(version)) != 0:
        return ""
    served_by = bytes(version.build_number)
    openvino.ov_version_free(ctypes.byref(version))
    if npu_driver is not None:
        served_by += f"; driver {npu_driver}".encode()
    return _cut(served_by, _VERSION)


def _cut(text: bytes | None, size: int) -> str:
    """Truncates a text to a number of bytes."""
    return (text or b"")[: size - 1].decode("utf-8", "replace")


@dataclass(frozen=True)
class DeviceInfo:
    """One npu device.

    Attributes:
        name: torch's name of it, for example ``npu:0``.
        driver: its driver, for example ``openvino``.
        device: the driver's own name, for example ``NPU`` or ``CPU``.
        full_name: the product name.
        driver_version: version of the vendor's software.
        capabilities: the dtypes that the vendor reports, for example ``("FP32", "BF16")``.
        memory_bytes: usable memory; 0 if unknown.
        reason: the reason for choosing this device, as a clause.
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
        DeviceError: no device is available (code ``device-absent``), or the index does not exist
            (``device-index``).
    """
    if not -(2**31) <= index < 2**31:  # the range of a native index
        raise DeviceError(
            "npu_runtime.device_info: `index` must fit in 32 bits, got a number of "
            f'{operator.index(index).bit_length()} bits, which does not exist. Use "npu:0".',
            code="device-index",
        )
    is_without_torch = index == 0 and is_deferred()
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
    """Returns the generation of the NPU in use, such as "4000"; "" for other devices."""
    serving = device_info()
    if serving.driver != "openvino" or not serving.device.startswith("NPU"):
        return ""
    return architecture_of(openvino_library(), serving.device)


def _opened(index: int) -> dict[str, Any]:
    start_packages()  # already loaded if npu_runtime is imported
    from npu_runtime import _C  # late: it needs torch's libraries

    return _C.device_properties(index)


@functools.cache
def _asked_without_torch() -> dict[str, Any] | None:
    """Returns OpenVINO's choice; None if another driver may be used, or none can."""
    if problem is not None or not is_built_for(importlib.metadata.version("torch")):
        return None
    # A library given by the user must pass the driver's checks.
    if config.driver not in ("", "openvino") or config.openvino_library:
        return None
    if not config.driver and vendor_entry_points():
        return None
    return serving_device(openvino_library(), config.device)
