"""Drivers of other vendors: shared libraries in other wheels, found by entry point.

Which one serves is decided in csrc/driver/choice.cpp; the interface is include/npu/driver.h.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

from npu_runtime.config import config

__all__ = [
    "BUILT_IN",
    "ENTRY_POINT_GROUP",
    "find_vendor_drivers",
    "library_of",
    "openvino_library",
    "vendor_entry_points",
]

ENTRY_POINT_GROUP = "npu_runtime.drivers"
BUILT_IN = ("openvino", "sim")


def vendor_entry_points() -> list[importlib.metadata.EntryPoint]:
    """The entry points of the installed vendors' drivers, by name; reads what is installed."""
    return sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def library_of(entry: importlib.metadata.EntryPoint) -> str:
    """Path of the library that an entry point ``name = "package.module:function"`` names.

    Raises:
        Exception: whatever the vendor's module or function raises.
    """
    locate: Callable[[], str | os.PathLike[str]] = entry.load()
    return os.fspath(locate())


def find_vendor_drivers() -> list[tuple[str, str, str]]:
    """Name, library and problem of each installed vendor's driver, by name.

    Called when the device is opened. Where the wheel cannot say where its library is, ``library``
    is empty and ``problem`` says why.
    """
    found = []
    for entry in vendor_entry_points():
        try:
            found.append((entry.name, library_of(entry), ""))
        except Exception as error:  # noqa: BLE001  # choice.cpp tells of it: an error or a warning
            found.append((entry.name, "", f"{type(error).__name__}: {error}"))
    return found


def openvino_library() -> str:
    """Path of OpenVINO's C library, or an empty string; found without importing openvino.

    It is the one of the setting ``NPU_OPENVINO_LIBRARY`` where that names one.
    """
    if config.openvino_library:
        return config.openvino_library
    spec = importlib.util.find_spec("openvino")
    if spec is None or not spec.submodule_search_locations:
        return ""
    folder = Path(spec.submodule_search_locations[0], "libs")
    libraries = sorted(folder.glob("libopenvino_c.so*"))
    return str(libraries[-1]) if libraries else ""
