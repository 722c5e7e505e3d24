"""Import hooks: actions at the first import of a module, and packages whose own code runs later.

Actions keep slow modules out of programs that do not use them: importing Dynamo takes a second.
Bare packages keep torch out of commands that need no device: npu_runtime and npu_ops import torch
and register a device and its kernels, which help and error messages do not need.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["bare_packages", "is_bare", "load_packages", "when_imported", "while_importing"]

Around = Callable[[], contextlib.AbstractContextManager[None]]

# Packages that import torch, in the order in which their code must run.
_HEAVY = ("npu_runtime", "npu_ops")

_bare: _BarePackages | None = None


def when_imported(name: str, action: Callable[[], object]) -> Callable[[], None]:
    """Calls an action once: now if the module is loaded, else right after it has been loaded.

    A module that is still being imported (it imports the caller, for example) counts as loaded
    when the next module is looked up.

    Args:
        name: full name of the module.
        action: must not raise, or the import fails.

    Returns:
        A function that cancels the action. It may be called at any time, and twice.
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
    """Runs the first successful import of a module inside `around()`.

    Args:
        name: full name of a module that is not loaded yet.
        around: returns a context manager.

    Returns:
        A function that cancels the hook. It may be called at any time, and twice.
    """

    def execute(module: ModuleType, loader: importlib.abc.Loader) -> None:
        if finder not in sys.meta_path:  # canceled after the spec was found
            loader.exec_module(module)
            return
        with around():
            loader.exec_module(module)
            finder.remove()

    finder = _Finder({name}, execute)
    sys.meta_path.insert(0, finder)
    return finder.remove


@contextlib.contextmanager
def bare_packages(module: str) -> Iterator[None]:
    """Imports the parent packages of a module, npu_runtime and npu_ops without their own code.

    `load_packages` runs that code. Without such a call, all of our modules that were imported in
    the body are removed from `sys.modules` at its end. Packages that are already loaded do not
    change.

    Args:
        module: full name, such as npu_ops.debugging.commands. Its top level must not import torch.
    """
    global _bare
    parts = module.split(".")
    parents = [".".join(parts[:end]) for end in range(1, len(parts))]
    if not parents or parents[0] in sys.modules or _HEAVY[0] in sys.modules:
        yield
        return
    before = set(sys.modules)
    _bare = _BarePackages({*parents, *_HEAVY})
    sys.meta_path.insert(0, _bare.finder)
    try:
        yield
    finally:
        if _bare is not None:
            _bare.finder.remove()
            _bare = None
            for name in set(sys.modules) - before:
                if name.startswith("npu_") and not name.startswith("npu_command."):
                    del sys.modules[name]


def is_bare(package: str) -> bool:
    """Whether a package is imported and its own code has not run."""
    return _bare is not None and package in _bare.found


def load_packages() -> None:
    """Runs the code of the packages that `bare_packages` imported without it, if there are any."""
    global _bare
    if _bare is None:
        return
    _bare.finder.remove()
    found, _bare = _bare.found, None
    in_order = [name for name in _HEAVY if name in found]
    in_order += [name for name in found if name not in _HEAVY]
    for name in in_order:
        module, loader = found[name]
        loader.exec_module(module)


class _BarePackages:
    """Packages imported without their own code.

    Attributes:
        finder: the hook that imports them.
        found: name -> the module, and the loader that has its code.
    """

    def __init__(self, names: set[str]) -> None:
        self.finder = _Finder(names, self._keep)
        self.found: dict[str, tuple[ModuleType, importlib.abc.Loader]] = {}

    def _keep(self, module: ModuleType, loader: importlib.abc.Loader) -> None:
        self.found[module.__name__] = (module, loader)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds some modules with the finders after it, and executes them by a function.

    It remains after a failed import, which a program may retry, and after `find_spec`, which a
    program may call only to see whether a module exists.

    Attributes:
        names: full names of the modules.
    """

    def __init__(
        self, names: set[str], execute: Callable[[ModuleType, importlib.abc.Loader], None]
    ) -> None:
        self.names = names
        self._execute = execute

    def remove(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names or self not in sys.meta_path:
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = _first_spec(later, fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._execute)
        return spec


class _Loader(importlib.abc.Loader):
    """Restores the module's own loader, and passes both to a function in place of executing it."""

    def __init__(
        self,
        loader: importlib.abc.Loader,
        execute: Callable[[ModuleType, importlib.abc.Loader], None],
    ) -> None:
        self._loader = loader
        self._execute = execute

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        # Code that reads the module's loader (importlib.resources) must find the real one.
        module.__spec__.loader = module.__loader__ = self._loader
        self._execute(module, self._loader)


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds nothing; calls an action when the import of its module is over and another begins.

    Attributes:
        names: full name of the module.
    """

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.names = {name}
        self._name = name
        self._action = action
        self._cancel_next: Callable[[], None] = lambda: None

    def remove(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        self._cancel_next()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self not in sys.meta_path or _is_loading(self._name):
            return None
        self.remove()
        # If the import failed, this waits for the next one.
        self._cancel_next = when_imported(self._name, self._action)
        # importlib iterates over the list, which has just changed: search all of it here.
        return _first_spec(list(sys.meta_path), fullname, path, target)


def _first_spec(
    finders: list[Any], fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Returns the spec of the first finder that finds the module, or None."""
    for finder in finders:
        spec: ModuleSpec | None = finder.find_spec(fullname, path, target)
        if spec is not None:
            return spec
    return None


def _is_loading(name: str) -> bool:
    """Whether a module is being imported, by importlib's attribute of its spec."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
