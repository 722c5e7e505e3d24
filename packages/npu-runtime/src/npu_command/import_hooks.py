"""Late imports: names of packages (PEP 562), the start of the device, actions after an import.

Lazy names and a deferred start keep torch out of commands that need no device: help and error
messages take 0.1 s. Actions keep slow modules out of programs that do not use them: importing
Dynamo takes a second.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = [
    "deferred_starts",
    "has_torch",
    "homes_of",
    "is_deferred",
    "lazy_names",
    "start",
    "start_packages",
    "when_imported",
    "while_importing",
]

Around = Callable[[], contextlib.AbstractContextManager[None]]

_deferred: list[Callable[[], object]] | None = None  # the starts that a command defers


def lazy_names(package: str, homes: Mapping[str, str | None]) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`, which imports each name at its first use (PEP 562).

    It also returns `__version__`, from the package's metadata.

    Args:
        package: the `__name__` of the package.
        homes: name -> the module that defines it, below the package; None for a module's name.
    """

    def get(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version  # late: few programs read it

            return version(package.replace("_", "-"))
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        try:
            module = importlib.import_module(f"{package}.{name if home is None else home}")
        except ImportError as failure:
            if has_torch():
                raise
            raise ImportError(
                f"{package}.{name}: needs torch, which is not installed. Run `pip install torch`."
            ) from failure
        if home is None:
            return module
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get


def homes_of(modules: Mapping[str, str]) -> dict[str, str | None]:
    """Returns the homes for `lazy_names` of modules -> the names they define, between spaces."""
    return {name: module for module, names in modules.items() for name in names.split()}


def start(action: Callable[[], object]) -> None:
    """Runs a package's code that needs torch: now, or when a command has read its arguments.

    Without torch it never runs: modules that do not need torch can still be imported.
    """
    if _deferred is not None:
        _deferred.append(action)
    elif has_torch():
        action()


def has_torch() -> bool:
    """Whether torch is installed; nothing is imported."""
    return importlib.util.find_spec("torch") is not None


def start_packages() -> None:
    """Runs the starts that `deferred_starts` deferred, in the order of their imports."""
    global _deferred
    actions, _deferred = _deferred, None
    for action in actions or ():
        action()


def is_deferred() -> bool:
    """Whether starts are deferred now, so that a package may be there without the device."""
    return _deferred is not None


@contextlib.contextmanager
def deferred_starts() -> Iterator[None]:
    """Defers the starts of packages that are imported in the body, until `start_packages`.

    Without such a call, all of our modules that were imported in the body are removed from
    `sys.modules` at its end. Packages that are already imported do not change.
    """
    global _deferred
    if "npu_runtime" in sys.modules:
        yield
        return
    before = set(sys.modules)
    _deferred = []
    try:
        yield
    finally:
        if _deferred is not None:
            _deferred = None
            for name in set(sys.modules) - before:
                if name.startswith("npu_") and not name.startswith("npu_command."):
                    del sys.modules[name]


def when_imported(name: str, action: Callable[[], object]) -> Callable[[], None]:
    """Calls an action once: now if the module is loaded, else right after it has been loaded.

    A module that is still being imported (it imports the caller, for example) counts as loaded when
    the next module is looked up. The action must not raise, or the import fails. Returns a function
    that cancels it, which may be called at any time, and twice.
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
    """Runs the first successful import of a module, not loaded yet, inside `around()`.

    Returns a function that cancels the hook. It may be called at any time, and twice.
    """

    def execute(module: ModuleType, loader: importlib.abc.Loader) -> None:
        if finder not in sys.meta_path:  # canceled after the spec was found
            loader.exec_module(module)
            return
        with around():
            loader.exec_module(module)
            finder.remove()

    finder = _Finder(name, execute)
    sys.meta_path.insert(0, finder)
    return finder.remove


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a module with the finders after it, and executes it by a function.

    It remains after a failed import, which a program may retry, and after `find_spec`, which a
    program may call only to see whether a module exists.

    Attributes:
        name: full name of the module.
    """

    def __init__(
        self, name: str, execute: Callable[[ModuleType, importlib.abc.Loader], None]
    ) -> None:
        self.name = name
        self._execute = execute

    def remove(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self not in sys.meta_path:
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
    """Finds nothing; calls an action when the import of its module is over and another begins."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.name = name
        self._action = action
        self._cancel_next: Callable[[], None] = lambda: None

    def remove(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        self._cancel_next()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self not in sys.meta_path or _is_loading(self.name):
            return None
        self.remove()
        # If the import failed, this waits for the next one.
        self._cancel_next = when_imported(self.name, self._action)
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
