"""Which of OpenVINO's devices would serve, asked of its C library without torch.

The choice and its words are those of csrc/driver/openvino_devices.cpp, which opens the device.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["architecture_of", "serving_device"]

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
    """Describes the device that the driver openvino would open.

    Args:
        library: path of OpenVINO's C library.
        wanted: name of the device that was asked for; empty for the driver's choice.

    Returns:
        What the extension module's `device_properties` does; None where there is no such device,
        or OpenVINO does not answer: opening the device says why.
    """
    return _asked(library, lambda openvino, core: _described(openvino, core, wanted))


def architecture_of(library: str, device: str) -> str:
    """Returns the architecture of a device as OpenVINO names it, such as "4000"; "" for none.

    Args:
        library: path of OpenVINO's C library.
        device: its name.
    """
    return (
        _asked(library, lambda openvino, core: _property(openvino, core, device, _ARCHITECTURE))
        or ""
    )


def _asked(
    library: str, ask: Callable[[ctypes.CDLL, ctypes.c_void_p], _Found | None]
) -> _Found | None:
    """Returns what a core answers; None without a library or the functions that are called."""
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
            openvino, asked("NPU_DRIVER_VERSION", _NPU_VERSION) if _is_npu(device) else None
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
    """The device, and why it is that one."""
    if wanted:
        found = _first(names, wanted)
        return None if found is None else (found, f"NPU_DEVICE={wanted} asks for it")
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
    """The first device of a kind; "NPU" also finds "NPU.0"."""
    return next((name for name in names if name == wanted or name.startswith(f"{wanted}.")), None)


def _is_npu(device: str) -> bool:
    return device.startswith("NPU")


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
    """A text as it is in an array of so many bytes."""
    return (text or b"")[: size - 1].decode("utf-8", "replace")
