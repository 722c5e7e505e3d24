"""Signals in a profiled program: none for our threads, and a trace before a fatal one.

Ctrl-C is an exception in Python and ends the program normally.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["Termination", "signals_blocked"]


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Threads started in the body, by Python or by native code, never receive a signal.

    A signal delivered to another thread does not wake the main thread from a sleep. Ctrl-C and
    SIGTERM would be late or, in an endless wait, never handled (seen 2026-11 with kineto's thread,
    in one of five runs on a busy machine). A signal during the body is delivered after it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Termination:
    """Calls `finish` before a signal ends the process; the process still dies of that signal.

    Signals that the program handles, or was started to ignore, are unchanged. The program's
    `finally` blocks do not run, as without the profiler.

    Args:
        finish: called on the main thread between two bytecodes, so it must not wait for a lock that
            the program may hold.
    """

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self._pid = os.getpid()
        self._is_finishing = False
        self._pending: int | None = None
        self._was_interrupted = False

    def note_interrupt(self) -> None:
        """Records that Ctrl-C ends the program, so that SIGINT kills it after `finish`."""
        self._was_interrupted = True

    def install(self) -> None:
        """Installs handlers of fatal signals. Call it on the main thread."""
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._die)
        os.register_at_fork(after_in_child=self._restore)

    def run_finish(self) -> None:
        """Calls `finish` at a normal end of the program; signals are deferred meanwhile."""
        self._is_finishing = True
        try:
            self._finish()
        finally:
            self._is_finishing = False
            if self._pending is not None:
                self._kill(self._pending)
            if self._was_interrupted:
                _remember_interrupt()

    def _die(self, number: int, frame: FrameType | None) -> None:
        if self._is_finishing:
            self._pending = number
            return
        self._pending = number
        self.run_finish()

    def _restore(self) -> None:
        for number in _SIGNALS:
            if signal.getsignal(number) == self._die:
                signal.signal(number, signal.SIG_DFL)

    def _kill(self, number: int) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(self._pid, number)


def _remember_interrupt() -> None:
    """Makes Python exit as after Ctrl-C.

    CPython 3.11 records whether the last code run from a string ended with an interrupt, and
    `finish` may import modules that run such code.
    """
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")
