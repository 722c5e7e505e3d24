"""Handles Ctrl-C: the command exits with 130 within a second, without a traceback.

Python raises Ctrl-C as an exception at the next line. During an import or a native callback, that
exception is swallowed or printed, and during a long native call (a compilation) it is never raised.
So the signal handler ends the process itself, and a thread ends it if the main thread cannot. Files
must therefore always be written atomically, as for a killed process; unfinished folders are
removed.

For a command that handles Ctrl-C or runs the user's program, `as_exception` restores Python's
behaviour.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from npu_command.early_interrupt import leave

__all__ = [
    "EXIT_INTERRUPTED",
    "as_exception",
    "done_at_interrupt",
    "end_at_once",
    "give_back",
    "leave_early",
    "removed_at_interrupt",
]

# The shell's status of a process ended by a signal: 128 plus its number.
EXIT_INTERRUPTED = 130
_PATIENCE_S = 0.3  # time for the main thread to return from a native call
_CLEANUP_S = 1.0
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it

_undone: list[Callable[[], object]] = []
_program = ""
_wakeup: tuple[int, int] | None = None
_ending: int | None = None  # the thread that ends the process
_is_interrupted = False
_lock = threading.Lock()


def end_at_once(program: str) -> None:
    """Makes Ctrl-C end this process, the command `program`; a second call only changes the name.

    Has no effect outside the main thread, or if Ctrl-C is already ignored or handled.
    """
    global _program, _wakeup
    _program = program
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, leave):
        return
    if _wakeup is None:
        _wakeup = os.pipe()
        os.set_blocking(_wakeup[1], False)
        threading.Thread(target=_watch, args=(_wakeup[0],), name="ctrl-c", daemon=True).start()
        os.register_at_fork(after_in_child=_forget)
        # Runs last at exit, after the program's handlers.
        atexit.register(_finish)
    _take()


@contextmanager
def as_exception() -> Iterator[None]:
    """Makes Ctrl-C a KeyboardInterrupt in the body, then restores the previous handling."""
    is_ours = signal.getsignal(signal.SIGINT) is _handle
    if is_ours:
        give_back()
    try:
        yield
    finally:
        if is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _take()


def leave_early() -> None:
    """Makes an interrupted process exit after its exit handlers."""
    global _is_interrupted
    _is_interrupted = True


@contextmanager
def done_at_interrupt(action: Callable[[], object]) -> Iterator[None]:
    """Calls a function, which must be quick, if Ctrl-C ends the process in the body."""
    _undone.append(action)
    try:
        yield
    finally:
        _undone.remove(action)


def removed_at_interrupt(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Removes an unfinished folder if Ctrl-C ends the process in the body."""
    return done_at_interrupt(partial(shutil.rmtree, folder, ignore_errors=True))


def _take() -> None:
    assert _wakeup is not None, "the pipe is made first"
    signal.set_wakeup_fd(_wakeup[1], warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _handle)


def _forget() -> None:
    """Restores Python's Ctrl-C in a forked child, which has the pipe but not the thread."""
    global _wakeup
    give_back()
    _wakeup = None


def give_back() -> None:
    """Restores Python's handling of Ctrl-C permanently."""
    if signal.getsignal(signal.SIGINT) is _handle:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _finish() -> None:
    """Keeps the command's exit code during interpreter shutdown."""
    if _is_interrupted:
        # Shutdown during a compilation took up to 10 s (2026-11-23).
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(EXIT_INTERRUPTED)
    if signal.getsignal(signal.SIGINT) is _handle:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _handle(number: int, frame: FrameType | None) -> None:
    _end()


def _watch(pipe: int) -> None:
    """Ends the process if a signal came and the main thread does not return to Python."""
    while True:
        if signal.SIGINT not in os.read(pipe, 64):
            continue
        time.sleep(_PATIENCE_S)
        if signal.getsignal(signal.SIGINT) is _handle:  # else the command has ended, or handles it
            threading.Thread(target=_end, daemon=True).start()
            time.sleep(_CLEANUP_S)
            os._exit(EXIT_INTERRUPTED)


def _end() -> None:
    """Reports the interrupt, removes unfinished folders, and ends the process, in one thread."""
    global _ending
    if _ending == threading.get_ident():  # a second signal meanwhile
        return
    with _lock:
        _ending = threading.get_ident()
        _say()
        for action in tuple(_undone):
            with contextlib.suppress(Exception):
                action()
        os._exit(EXIT_INTERRUPTED)


def _say() -> None:
    text = f"\n{_program}: interrupted\n".encode()
    with contextlib.suppress(OSError):
        os.write(2, _SHOW_CURSOR + text if os.isatty(2) else text)
