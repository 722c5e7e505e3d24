"""Modules of a package without the package's own code, which runs later or not at all.

npu_runtime and npu_ops register a device and its kernels when they are imported, for which they
import torch. Help, wrong arguments and questions that need no device are answered without.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from npu_command.late_import import finders_after, first_spec

__all__ = ["bare_packages", "is_bare", "load_packages"]

# Their code imports torch. In the order in which it must run.
_HEAVY = ("npu_runtime", "npu_ops")

_finder: _Finder | None = None


@contextlib.contextmanager
def bare_packages(module: str) -> Iterator[None]:
    """Within it, the packages around a module, npu_runtime and npu_ops are imported without code.

    Their code runs when load_packages is called. If it was not, all that was imported of our
    packages is forgotten at the end. Packages that are loaded already are left as they are.

    Args:
        module: full name, npu_ops.tools.commands.run. It must not import torch at its top.
    """
    global _finder
    parts = module.split(".")
    around = [".".join(parts[:end]) for end in range(1, len(parts))]
    if not around or around[0] in sys.modules or _HEAVY[0] in sys.modules:
        yield
        return
    before = set(sys.modules)
    _finder = _Finder({*around, *_HEAVY})
    sys.meta_path.insert(0, _finder)
    try:
        yield
    finally:
        if _finder is not None:
            _finder.remove()
            _finder = None
            for name in set(sys.modules) - before:
                if name.startswith("npu_") and not name.startswith("npu_command."):
                    del sys.modules[name]


def is_bare(package: str) -> bool:
    """Whether a package's modules are there, and its own code has not run."""
    return _finder is not None and package in _finder.found


def load_packages() -> None:
    """Runs the code of the packages that were imported without it; does nothing without such."""
    global _finder
    if _finder is None:
        return
    _finder.remove()
    found, _finder = _finder.found, None
    in_order = [name for name in _HEAVY if name in found]
    in_order += [name for name in found if name not in _HEAVY]
    for name in in_order:
        module, loader = found[name]
        loader.exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what the finders after it find, and keeps the code of some packages back.

    Attributes:
        found: the packages that were imported, with the loaders that have their code.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.found: dict[str, tuple[ModuleType, importlib.abc.Loader]] = {}

    def remove(self) -> None:
        sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        spec = first_spec(finders_after(self), fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """Makes the module of a package, and keeps its own loader for later."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        # Code that asks the module for its loader (importlib.resources) must find the real one.
        module.__spec__.loader = module.__loader__ = self._loader
        self._finder.found[module.__name__] = (module, self._loader)
