"""Converters from other wheels, found by entry point and loaded when the table is first asked.

The table itself is in npu_compiler.lowering.registry.
"""

from __future__ import annotations

import importlib.metadata
import threading
import warnings
from collections.abc import Callable

from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["ENTRY_POINT_GROUP", "broken_plugins", "load_plugins"]

ENTRY_POINT_GROUP = "npu_compiler.converters"

_lock = threading.RLock()
_is_loaded = False
_broken: dict[str, str] = {}


def load_plugins(undo: Callable[[], Callable[[], None]]) -> None:
    """Imports the modules that the entry points of the group name; the first call alone does it.

    A module registers its converters while it is imported. One that fails is passed over with a
    warning that names its wheel, and what it had registered is taken back.

    Args:
        undo: called before each module; what it returns takes back what was registered since.
    """
    global _is_loaded
    if _is_loaded:
        return
    with _lock:
        if _is_loaded:  # by another thread, or a converter's module that lowers something itself
            return
        _is_loaded = True
        # Graphs are lowered while torch traces with fake tensors; a wheel's import must not see it.
        with _disable_current_modes():
            for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)):
                _load(entry, undo())


def broken_plugins() -> tuple[str, ...]:
    """Returns one sentence for each wheel whose converters could not be loaded, sorted."""
    return tuple(sorted(_broken.values()))


def _load(entry: importlib.metadata.EntryPoint, take_back: Callable[[], None]) -> None:
    try:
        entry.load()
    except Exception as failure:  # noqa: BLE001  # another's wheel: whatever it raises is told
        take_back()
        wheel = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unnamed wheel"
        reason = f"{type(failure).__name__}: {failure}"
        _broken[entry.name] = f"the converters of {wheel} cannot be loaded ({reason})"
        warnings.warn(
            f"npu_compiler: the entry point {entry.name} = {entry.value} of {wheel} must name a "
            f"module that registers converters; importing it raised {reason}. Its ops run "
            "eagerly. Repair or uninstall the wheel. [converter-plugin]",
            RuntimeWarning,
            stacklevel=2,
        )
