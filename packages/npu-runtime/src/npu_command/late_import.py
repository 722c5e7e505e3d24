"""Actions for the moment when a module is first imported, so that nothing imports it earlier.

Dynamo is such a module: it takes a second, and most programs never load it. torch is another where
a program is run unchanged, which may set variables before it imports torch.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["finders_after", "first_spec", "when_imported", "while_importing"]

Around = Callable[[], contextlib.AbstractContextManager[None]]


def when_imported(name: str, action: Callable[[], object]) -> Callable[[], None]:
    """Calls an action once: now if the module is loaded, else right after it has been.

    A module whose import has begun and is not over (it imports the caller, say) counts as loaded
    when the next module is looked for.

    Args:
        name: full name of the module.
        action: must not raise, or the import fails.

    Returns:
        What stops the wait; it may be called at any time, and twice.
    """

    @contextlib.contextmanager
    def before_action() -> Iterator[None]:
        yield
        action()

    if name not in sys.modules:
        return while_importing(name, before_action)
    if _is_loading(name):
        waiting = _Waiting(name, action)
        sys.meta_path.insert(0, waiting)
        return waiting.remove
    action()
    return lambda: None


def while_importing(name: str, around: Around) -> Callable[[], None]:
    """Runs the first import that succeeds of a module that is not loaded yet inside `around()`.

    Returns:
        What stops the wait; it may be called at any time, and twice.
    """
    finder = _Finder(name, around)
    sys.meta_path.insert(0, finder)
    return finder.remove


def finders_after(finder: importlib.abc.MetaPathFinder) -> list[Any]:
    """The finders that have not been asked yet when one is."""
    return sys.meta_path[sys.meta_path.index(finder) + 1 :]


def first_spec(
    finders: list[Any], fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """What the first of the finders finds that knows the module; None if none does."""
    for finder in finders:
        spec: ModuleSpec | None = finder.find_spec(fullname, path, target)
        if spec is not None:
            return spec
    return None


def _is_loading(name: str) -> bool:
    """Whether a module is being imported; importlib tells so in an attribute of its spec."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds nothing; notices that a module's import is over when another one begins."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self._name = name
        self._action = action
        self._stop_next: Callable[[], None] = lambda: None

    def remove(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        self._stop_next()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self not in sys.meta_path or _is_loading(self._name):
            return None
        self.remove()
        # It waits again where the import failed.
        self._stop_next = when_imported(self._name, self._action)
        # importlib walks the list, which is another now: ask all of it here.
        return first_spec(list(sys.meta_path), fullname, path, target)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what the finders after it find, and wraps the loader of one module.

    It stays until the module is loaded: programs ask for a spec only to see whether a module is
    there, and an import that failed is tried again.
    """

    def __init__(self, name: str, around: Around) -> None:
        self._name = name
        self._around = around

    def remove(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        spec = first_spec(finders_after(self), fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Around the module's own code; does nothing once the wait has been stopped."""
        if self not in sys.meta_path:
            yield
            return
        with self._around():
            yield
            self.remove()


class _Loader(importlib.abc.Loader):
    """Loads as the module's own loader, which it puts back in its place, inside a context."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        # Code that asks the module for its loader (importlib.resources) must find the real one.
        module.__spec__.loader = module.__loader__ = self._loader
        with self._finder.loading():
            self._loader.exec_module(module)
