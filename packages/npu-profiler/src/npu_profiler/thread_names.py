"""Remembers what threads of the program are called, as a thread that ended tells nobody its name.

Names that the OS gives to threads not made by Python come from torch's recording (`torch_ops.py`).
"""

import functools
import threading
from typing import Any

__all__ = ["ThreadNames"]


class ThreadNames:
    """Notes the name of each Python thread by its OS id while it is started."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._start = threading.Thread.start

    def start(self) -> None:
        """Notes the threads that are there, and from now on the new ones."""
        original = self._start
        names = self._names

        @functools.wraps(original)
        def start(self: threading.Thread, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if self.native_id is not None:
                names[self.native_id] = self.name

        threading.Thread.start = start  # type: ignore[method-assign]
        self._note_living()

    def stop(self) -> dict[int, str]:
        """Ends it and returns the names by OS id, in their latest form where the thread lives."""
        threading.Thread.start = self._start  # type: ignore[method-assign]
        self._note_living()
        return dict(self._names)

    def _note_living(self) -> None:
        for thread in threading.enumerate():
            if thread.native_id is not None:
                self._names[thread.native_id] = (
                    "main thread" if thread is threading.main_thread() else thread.name
                )
