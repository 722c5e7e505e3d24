"""Tells dynamo about npu when dynamo is first imported, and not before: it takes a second.

What it is told is in dynamo_interface.py.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["register_with_dynamo"]

_AWAITED = "torch._dynamo.device_interface"


def register_with_dynamo() -> None:
    """Registers npu now where dynamo is loaded, else as soon as it is."""
    if _AWAITED in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    importlib.import_module("npu_runtime.dynamo_interface")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: wraps the loader of one module, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _AWAITED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads as the real loader does, and registers npu after that."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register()
