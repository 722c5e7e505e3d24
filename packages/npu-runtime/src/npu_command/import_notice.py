"""Tells on a terminal what is imported, where that takes long: torch alone takes seconds."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from npu_command.output import is_quiet

__all__ = ["Imports", "import_notice"]

_PATIENCE_S, _PERIOD_S = 0.5, 0.2
_SHOWN_S = 1.0  # what was imported last is told for so long
_ERASE = "\r\x1b[K"


class Imports:
    """Watches which modules there are."""

    def __init__(self) -> None:
        """Begins with those that there are now."""
        self._count = len(sys.modules)
        self._seen_at = time.perf_counter()

    def newest(self, *, since: float = 0.0) -> str:
        """Returns what was imported last, within a second; "" for nothing.

        Args:
            since: a time.perf_counter(); what was seen before it does not count.
        """
        names, now = list(sys.modules), time.perf_counter()
        if len(names) > self._count:
            self._count, self._seen_at = len(names), now
        elif self._seen_at <= since or now - self._seen_at > _SHOWN_S:
            return ""
        return f"importing {names[-1]}, {len(names):,} modules"


@contextmanager
def import_notice() -> Iterator[None]:
    """Shows a line on standard error, if that is a terminal, of what is imported in the body.

    It begins after half a second, and is gone at the end.
    """
    if is_quiet() or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield
        return
    is_over = threading.Event()
    thread = threading.Thread(target=_tell, args=(is_over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _tell(is_over: threading.Event) -> None:
    imports, started = Imports(), time.perf_counter()
    if is_over.wait(_PATIENCE_S):
        return
    try:
        while True:
            seconds = time.perf_counter() - started
            text = f"{seconds:.0f} s: {imports.newest() or 'starting'}"
            room = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"{_ERASE}{text[:room]}")
            sys.stderr.flush()
            if is_over.wait(_PERIOD_S):
                break
        sys.stderr.write(_ERASE)
        sys.stderr.flush()
    except OSError:  # the terminal has gone, which the command will notice
        return
