"""Waits for the import of Lightning, and then registers npu with it."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from functools import partial

from npu_command.import_hooks import while_importing
from npu_runtime.library_patches.replacing import change_when_imported

__all__ = ["install"]

# What each distribution calls Fabric and the rest; the second name is imported first, or alone.
_DISTRIBUTIONS = {
    "lightning": ("lightning.fabric", "lightning.pytorch"),
    "lightning_fabric": ("lightning_fabric", "pytorch_lightning"),
}


def install() -> None:
    """Has Lightning changed when it is imported, or now; does not import it."""
    for library, names in _DISTRIBUTIONS.items():
        if library in sys.modules:
            _begin(*names)
        else:
            while_importing(library, partial(_beginning, *names))


@contextlib.contextmanager
def _beginning(fabric: str, pytorch: str) -> Iterator[None]:
    _begin(fabric, pytorch)
    yield


def _begin(fabric: str, pytorch: str) -> None:
    changes = importlib.import_module("npu_runtime.lightning.changes").changes(fabric, pytorch)
    for name, change in changes.items():
        change_when_imported(name, change)
