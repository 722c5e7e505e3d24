"""Keeps threads that the profiler causes from receiving the program's signals.

npu_profiler.program.termination lets a program that a signal ends leave its trace.
"""

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["signals_blocked"]


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
