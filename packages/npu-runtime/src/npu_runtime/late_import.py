"""Actions for the moment when a module is first imported, so that nothing imports it earlier.

Dynamo is such a module: it takes a second, and most programs never load it.
"""

import contextlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["when_imported", "while_importing"]

Around = Callable[[], contextlib.AbstractContextManager[None]]


def when_imported(name: str, action: Callable[[], object]) -> None:
    """Calls ``action`` once: now where the module is loaded, else as soon as it is."""

    @contextlib.contextmanager
    def before_action() -> Iterator[None]:
        yield
        action()

    if name in sys.modules:
        action()
    else:
        while_importing(name, before_action)


def while_importing(name: str, around: Around) -> None:
    """Runs the first import of a module that is not loaded yet inside ``around()``."""
    sys.meta_path.insert(0, _Finder(name, around))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: wraps the loader of one module, once."""

    def __init__(self, name: str, around: Around) -> None:
        self._name = name
        self._around = around

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._around)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads as the real loader does, inside a context."""

    def __init__(self, loader: importlib.abc.Loader, around: Around) -> None:
        self._loader = loader
        self._around = around

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        with self._around():
            self._loader.exec_module(module)
