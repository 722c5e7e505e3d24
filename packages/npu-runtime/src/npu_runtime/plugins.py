"""Plugins of other wheels, found by entry point: drivers, kernels, Inductor classes, observers.

csrc/driver/device_selection.cpp selects the driver; the interface is include/npu/driver.h.
The kernels are npu-ops, which depends on this package. Importing this module does not import torch.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from npu_runtime.config import config
from npu_runtime.errors import DeviceError, InputError

__all__ = [
    "BUILT_IN",
    "DRIVERS_GROUP",
    "INDUCTOR_GROUP",
    "INDUCTOR_NAMES",
    "OBSERVERS_GROUP",
    "find_inductor_class",
    "find_vendor_drivers",
    "install_observers",
    "kernel_package",
    "library_of",
    "load_kernels",
    "openvino_library",
    "vendor_entry_points",
]

DRIVERS_GROUP = "npu_runtime.drivers"
BUILT_IN = ("openvino", "sim")


def vendor_entry_points() -> list[importlib.metadata.EntryPoint]:
    """Returns the entry points of installed vendor drivers, by name."""
    return sorted(importlib.metadata.entry_points(group=DRIVERS_GROUP))


def library_of(entry: importlib.metadata.EntryPoint) -> str:
    """Returns the library path of an entry point; raises the errors of the vendor's function."""
    locate: Callable[[], str | os.PathLike[str]] = entry.load()
    return os.fspath(locate())


def find_vendor_drivers() -> list[tuple[str, str, str]]:
    """Returns the name, library and problem of each installed vendor driver, by name.

    Called when the device is opened. If the wheel cannot locate its library, ``library`` is empty
    and ``problem`` has the reason.
    """
    found = []
    for entry in vendor_entry_points():
        try:
            found.append((entry.name, library_of(entry), ""))
        except Exception as error:  # noqa: BLE001  # device_selection.cpp reports it
            found.append((entry.name, "", f"{type(error).__name__}: {error}"))
    return found


def openvino_library() -> str:
    """Returns the path of OpenVINO's C library, or an empty string, without importing openvino.

    The setting ``NPU_OPENVINO_LIBRARY`` overrides it.
    """
    if config.openvino_library:
        return config.openvino_library
    spec = importlib.util.find_spec("openvino")
    if spec is None or not spec.submodule_search_locations:
        return ""
    folder = Path(spec.submodule_search_locations[0], "libs")
    libraries = sorted(folder.glob("libopenvino_c.so*"))
    return str(libraries[-1]) if libraries else ""


_KERNEL_PACKAGE = "npu_ops"


def load_kernels() -> None:
    """Imports the kernels if installed; without them, npu tensors cannot be created."""
    if importlib.util.find_spec(_KERNEL_PACKAGE) is not None:
        importlib.import_module(_KERNEL_PACKAGE)


def kernel_package() -> ModuleType:
    """Returns the package with the kernels; [kernels-absent] if it is not installed."""
    if importlib.util.find_spec(_KERNEL_PACKAGE) is None:
        raise DeviceError(
            "torch.npu: npu-ops must be installed for the device's kernels, got none. Install its "
            "wheel: pip install dist/npu_ops-*.whl.",
            code="kernels-absent",
        )
    return importlib.import_module(_KERNEL_PACKAGE)


INDUCTOR_GROUP = "npu_runtime.inductor"

# Torch looks these up in the module of a private-use device (torch._inductor.codegen.common).
INDUCTOR_NAMES = frozenset(
    {"Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"}
)


def find_inductor_class(name: str) -> Any:
    """Returns a class of INDUCTOR_NAMES, or None when no installed wheel has it.

    Raises [inductor-wheels] if two wheels offer classes.
    """
    import importlib.metadata  # late: `import torch` imports this module, and few programs need it

    found = sorted(importlib.metadata.entry_points(group=INDUCTOR_GROUP))
    if len(found) > 1:
        raise InputError(
            f"torch.npu.{name}: at most one installed wheel may generate Inductor code, got "
            f"{', '.join(entry.value for entry in found)}. Uninstall all but one.",
            code="inductor-wheels",
        )
    return getattr(found[0].load(), name, None) if found else None


OBSERVERS_GROUP = "npu_runtime.observers"


def install_observers() -> None:
    """Calls each observer; a failure is a warning, because observers must not break the program."""
    for entry in importlib.metadata.entry_points(group=OBSERVERS_GROUP):
        try:
            entry.load()()
        except Exception as error:  # noqa: BLE001  # whatever is broken, torch must import
            warnings.warn(
                f"npu: the observer {entry.name} ({entry.value}) could not be installed: "
                f"{type(error).__name__}: {error}. Reinstall its wheel, or unset NPU_ATTACH. "
                "[observer]",
                RuntimeWarning,
                stacklevel=2,
            )
