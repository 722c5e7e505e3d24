"""Drivers of other vendors: shared libraries in other wheels, found by entry point.

Which one serves is decided in csrc/driver/choice.cpp; the interface is include/npu/driver.h.
"""

import importlib.metadata
import importlib.util
import logging
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["ENTRY_POINT_GROUP", "openvino_library", "vendor_drivers"]

ENTRY_POINT_GROUP = "npu_runtime.drivers"

_logger = logging.getLogger(__name__)


def vendor_drivers() -> list[tuple[str, str]]:
    """Names and library paths of the installed vendors' drivers, by name.

    An entry point ``name = "package.module:function"`` of the group names a function without
    arguments that gives the path of the library. One that fails is logged and left out.
    """
    found = []
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            locate: Callable[[], str | os.PathLike[str]] = entry.load()
            found.append((entry.name, os.fspath(locate())))
        except Exception:  # a broken vendor's wheel must not break torch's import
            _logger.warning("the driver %s could not be located", entry.name, exc_info=True)
    return sorted(found)


def openvino_library() -> str:
    """Path of OpenVINO's C library, or an empty string; found without importing openvino."""
    spec = importlib.util.find_spec("openvino")
    if spec is None or not spec.submodule_search_locations:
        return ""
    folder = Path(spec.submodule_search_locations[0], "libs")
    libraries = sorted(folder.glob("libopenvino_c.so*"))
    return str(libraries[-1]) if libraries else ""
