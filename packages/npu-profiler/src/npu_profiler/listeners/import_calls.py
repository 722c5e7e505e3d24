"""Notes how long imports take: what a program spends before its first op.

An import within another is noted where it is of another package, and all of them from a
millisecond on, so that a thousand modules of one library are one slice.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["ImportCall", "ImportCalls"]

_LEAST_NS = 1_000_000
_FUNCTION = "_find_and_load"
# Python leaves the frames of this file out of the traceback of an import that fails.
_FILE = "<frozen importlib._bootstrap>"


@dataclass(frozen=True, slots=True)
class ImportCall:
    """An import that ran a module's code."""

    name: str
    thread_id: int
    start_ns: int
    end_ns: int


class ImportCalls:
    """Listens to the imports of all threads, of modules that are not loaded yet."""

    def __init__(self) -> None:
        self._calls: list[ImportCall] = []
        self._inside = threading.local()
        self._original: Callable[..., Any] | None = None
        self._installed: Callable[..., Any] | None = None
        self._is_on = False

    def start(self) -> None:
        """Listens from now on."""
        # Python calls this function for an `import` statement unless the module is there already.
        bootstrap: Any = sys.modules["_frozen_importlib"]
        original = self._original = getattr(bootstrap, _FUNCTION)

        @functools.wraps(original)
        def find_and_load(name: str, import_: Any) -> Any:
            if not self._is_on:
                return original(name, import_)
            package, outer = name.partition(".")[0], getattr(self._inside, "package", "")
            if package == outer:
                return original(name, import_)
            self._inside.package = package
            start_ns = time.time_ns()
            try:
                return original(name, import_)
            finally:
                self._inside.package = outer
                self._note(name, start_ns)

        installed: Any = find_and_load
        installed.__code__ = installed.__code__.replace(co_filename=_FILE)
        setattr(bootstrap, _FUNCTION, installed)
        self._installed = installed
        self._is_on = True

    def stop(self) -> None:
        """Ends it; what somebody else put around it in between stays."""
        self._is_on = False
        bootstrap: Any = sys.modules["_frozen_importlib"]
        if getattr(bootstrap, _FUNCTION) is self._installed:
            setattr(bootstrap, _FUNCTION, self._original)

    def take(self) -> list[ImportCall]:
        """What ended since the last call."""
        taken, self._calls = self._calls, []
        return taken

    def _note(self, name: str, start_ns: int) -> None:
        end_ns = time.time_ns()
        if end_ns - start_ns >= _LEAST_NS:
            self._calls.append(ImportCall(name, threading.get_native_id(), start_ns, end_ns))
