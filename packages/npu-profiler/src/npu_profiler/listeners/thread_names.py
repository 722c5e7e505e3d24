"""Records the names of threads, because the name of an ended thread is lost.

Threads not made by Python have the name that the OS knows.
"""

import functools
import threading
from pathlib import Path
from typing import Any

__all__ = ["ThreadNames"]


class ThreadNames:
    """Records the name of each Python thread by OS id."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._start = threading.Thread.start

    def start(self) -> None:
        """Records existing threads, and new ones from now on."""
        original = self._start
        names = self._names

        @functools.wraps(original)
        def start(self: threading.Thread, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if self.native_id is not None:
                names[self.native_id] = self.name

        threading.Thread.start = start  # type: ignore[method-assign]
        self._note_living()

    def stop(self) -> None:
        """Stops, and updates the names of living threads."""
        threading.Thread.start = self._start  # type: ignore[method-assign]
        self._note_living()

    def get(self, thread_id: int) -> str:
        """Returns the name of the thread with this OS id; empty if unknown."""
        name = self._names.get(thread_id)
        if name is None:
            try:
                name = Path(f"/proc/self/task/{thread_id}/comm").read_text().strip()
            except (OSError, UnicodeDecodeError):  # it has ended, or its name is not UTF-8
                name = ""
            self._names[thread_id] = name
        return name

    def add(self, thread_id: int, name: str) -> None:
        """Sets a thread's name from another source, if it has none."""
        if not self._names.get(thread_id):
            self._names[thread_id] = name

    def _note_living(self) -> None:
        for thread in threading.enumerate():
            if thread.native_id is not None:
                self._names[thread.native_id] = (
                    "main thread" if thread is threading.main_thread() else thread.name
                )
