"""Signals of the profiled program: threads of ours receive none, and a deadly one leaves a trace.

Ctrl-C is an exception in Python, which ends the program the ordinary way.
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

    A signal that the system gives to another thread than the main one does not wake the main one
    from a sleep, so Ctrl-C and SIGTERM would come late or, from a wait without end, never (seen
    2026-11 with kineto's thread: in one of five runs on a busy machine). A signal that arrives
    during the body is delivered after it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Termination:
    """Calls `finish` before a signal ends the process; the process still dies of that signal.

    A program that handles the signal itself, or was started with it ignored, is left alone. No
    `finally` of the program runs, as none would without us.

    Args:
        finish: what to do first. It is called on the main thread between two bytecodes, so it must
            not wait for a lock that the program may hold.
    """

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self._pid = os.getpid()
        self._is_finishing = False
        self._pending: int | None = None
        self._was_interrupted = False

    def note_interrupt(self) -> None:
        """Says that ctrl-c ends the program, so that the process dies of it after `finish`."""
        self._was_interrupted = True

    def install(self) -> None:
        """Takes over the signals that would end the process. To be called on the main thread."""
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._die)
        os.register_at_fork(after_in_child=self._restore)

    def run_finish(self) -> None:
        """Calls `finish` where the program ends by itself; a signal meanwhile waits for it."""
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
    """Lets Python end as after ctrl-c.

    It remembers whether the last code run from a string ended with an interrupt (CPython 3.11), and
    `finish` may import modules that run some.
    """
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")
