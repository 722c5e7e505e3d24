"""Settings of the interpreter while a model is compiled, and much else is created."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator

__all__ = ["collector_paused", "freeze_objects", "switching_often"]

# Python's 5 ms are otherwise waited after each native call, of which a model has hundreds.
_SWITCH_S = 1e-4


class _Shared:
    """A setting of the process that holds while any thread is in the block."""

    def __init__(self, change: Callable[[], Callable[[], None]]) -> None:
        """Takes a function that changes the setting, and returns one that restores it."""
        self._change = change
        self._lock = threading.Lock()
        self._depth = 0
        self._restore: Callable[[], None] = lambda: None
        os.register_at_fork(after_in_child=self._leave_all)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Changes the setting in the block."""
        with self._lock:
            if self._depth == 0:
                self._restore = self._change()
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    self._restore()
                self._depth = max(self._depth, 0)  # forked in the block: it was left already

    def _leave_all(self) -> None:
        """In a forked child, which has none of the threads that are in the block."""
        self._lock = threading.Lock()
        if self._depth:
            self._depth = 0
            self._restore()


def _pause_collector() -> Callable[[], None]:
    if not gc.isenabled():
        return lambda: None
    gc.disable()
    return _resume_collector


def _resume_collector() -> None:
    if not gc.get_freeze_count():
        # Moves the new objects to the oldest generation, without a collection.
        gc.freeze()
        gc.unfreeze()
    gc.enable()


def _switch_often() -> Callable[[], None]:
    former = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    return lambda: sys.setswitchinterval(former)


_COLLECTOR, _SWITCHING = _Shared(_pause_collector), _Shared(_switch_often)


def collector_paused() -> contextlib.AbstractContextManager[None]:
    """Pauses the garbage collector in the block, also for other threads.

    Compilation makes many objects, and nearly all live on. With a large model in memory, each of
    the full collections that they cause takes up to 0.3 s.
    """
    return _COLLECTOR.held()


def freeze_objects() -> None:
    """Hides all objects from the garbage collector after a last collection.

    Traversing the objects of a loaded model takes up to 0.3 s, in which no thread can run.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def switching_often() -> contextlib.AbstractContextManager[None]:
    """Lets threads that compute in Python yield the interpreter often to one that compiles."""
    return _SWITCHING.held()
