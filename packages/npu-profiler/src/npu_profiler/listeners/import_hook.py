"""Calls a function right after a module has been imported, by whoever imports it.

The profiler must run a program unchanged, and a program may prepare the environment before its
`import torch` (OMP_NUM_THREADS, TORCH_LOGS): so torch is not imported for it. Knows nothing of what
is then started; that is in `recorder.py`.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

__all__ = ["ImportHook"]


class ImportHook(importlib.abc.MetaPathFinder):
    """Watches for the first import of some modules.

    Args:
        actions: What to call after the module of that name was imported; called at once for one
            that already is. An action must not raise: the program's import would fail.
    """

    def __init__(self, actions: dict[str, Callable[[], None]]) -> None:
        self._actions = dict(actions)

    def install(self) -> None:
        """Runs the actions of modules that are there, and waits for the others."""
        for name in list(self._actions):
            if name in sys.modules:
                self._actions.pop(name)()
        if self._actions:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stops waiting. Safe to call twice."""
        self._actions.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds what the other finders find, and wraps its loader."""
        if fullname not in self._actions:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None

    def imported(self, name: str) -> None:
        """Runs the action of `name` once; called by the loader."""
        action = self._actions.pop(name, None)
        if action is not None:
            action()


class _Loader(importlib.abc.Loader):
    """Loads as the module's own loader, puts that one back in its place, and tells the hook."""

    def __init__(self, loader: importlib.abc.Loader, hook: ImportHook) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Code that asks the module for its loader (importlib.resources) must find the real one.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._hook.imported(module.__name__)
