"""Plugins: loads converters and passes of other wheels by entry point, and locates their errors."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import threading
import traceback
import warnings
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["Plugins", "failing_line", "has_plugins", "place_of"]


@functools.cache
def _installed() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points()  # type: ignore[return-value]


def has_plugins(group: str) -> bool:
    """Whether an installed wheel has an entry point of a group."""
    return bool(_installed().select(group=group))


class Plugins:
    """The modules that the entry points of a group name; importing one adds rows to a table."""

    def __init__(self, group: str, table: dict[Any, Any], *, noun: str, instead: str) -> None:
        """Takes the group, and the table that its modules register in.

        `noun` and `instead` are texts of the warning: the things that a module registers, and the
        consequence of a broken module.
        """
        self._group = group
        self._table = table
        self._noun = noun
        self._instead = instead
        self._lock = threading.RLock()
        self._is_loaded = False
        # Entry point -> one sentence on why its module could not be imported.
        self.broken: dict[str, str] = {}

    def load(self) -> None:
        """Imports the modules; only the first call.

        A module that fails is skipped with a warning that names its wheel, and its rows are
        removed.
        """
        if self._is_loaded:
            return
        with self._lock:
            if self._is_loaded:  # by another thread, or by a module that compiles a graph itself
                return
            self._is_loaded = True
            # Graphs are compiled while torch traces with fake tensors; imports must run outside
            # that mode.
            with _disable_current_modes():
                for entry in sorted(_installed().select(group=self._group)):
                    self._import(entry)

    def _import(self, entry: importlib.metadata.EntryPoint) -> None:
        present = set(self._table)
        try:
            entry.load()
        except Exception as failure:  # noqa: BLE001  # a third-party wheel may raise anything
            for key in set(self._table) - present:
                del self._table[key]
            wheel = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unnamed wheel"
            reason = f"{type(failure).__name__}: {failure}"
            self.broken[entry.name] = f"the {self._noun} of {wheel} cannot be loaded ({reason})"
            warnings.warn(
                f"npu_compiler: the entry point {entry.name} = {entry.value} of {wheel} must name "
                f"a module that registers {self._noun}; importing it raised {reason}. "
                f"{self._instead} Repair or uninstall the wheel. [converter-plugin]",
                RuntimeWarning,
                stacklevel=2,
            )


def place_of(made: type) -> str:
    """Returns file and line of a class; only its name if it has no source."""
    try:
        return f"{inspect.getsourcefile(made)}:{inspect.getsourcelines(made)[1]}"
    except (OSError, TypeError):
        return str(getattr(made, "__qualname__", made))


def failing_line(failure: BaseException, place: str) -> str:
    """Returns the innermost line of an error in the file of `place`, or `place` itself."""
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(failure.__traceback__)
        if place.startswith(f"{frame.f_code.co_filename}:")
    ]
    return lines[-1] if lines else place
