"""Brings in the package that holds the device's kernels.

It stands above this one (npu-ops depends on npu-runtime), so it is found by name and may be
missing.
"""

import importlib
import importlib.util

__all__ = ["load_kernels"]

_KERNEL_PACKAGE = "npu_ops"


def load_kernels() -> None:
    """Imports the kernels where they are installed; without them tensors on npu cannot be made."""
    if importlib.util.find_spec(_KERNEL_PACKAGE) is not None:
        importlib.import_module(_KERNEL_PACKAGE)
