"""Brings in the package that holds the device's kernels.

It stands above this one (npu-ops depends on npu-runtime), so it is found by name and may be
missing.
"""

import importlib
import importlib.util
from types import ModuleType

from npu_runtime.errors import DeviceError

__all__ = ["kernel_package", "load_kernels"]

_KERNEL_PACKAGE = "npu_ops"


def load_kernels() -> None:
    """Imports the kernels where they are installed; without them tensors on npu cannot be made."""
    if importlib.util.find_spec(_KERNEL_PACKAGE) is not None:
        importlib.import_module(_KERNEL_PACKAGE)


def kernel_package() -> ModuleType:
    """Returns the package with the kernels.

    Raises:
        DeviceError: it is not installed (code ``kernels-absent``).
    """
    if importlib.util.find_spec(_KERNEL_PACKAGE) is None:
        raise DeviceError(
            "torch.npu: kernels for the device come with npu-ops; it is not installed. "
            "Run pip install npu-ops.",
            code="kernels-absent",
        )
    return importlib.import_module(_KERNEL_PACKAGE)
