"""Ctrl-C in a command: it ends with 130, within a second, wherever it was, without a traceback.

Python makes Ctrl-C an exception at whatever line runs next. In the middle of an import or of a
callback from native code that exception is swallowed or shown, and in a long native call (a
compilation) it does not come at all. So here the signal's handler ends the process itself, and a
thread does where the main thread cannot. What is written must be whole at every moment for this,
which a killed process asks for as well; folders that are being filled are removed on the way.

Where a command has something to say to Ctrl-C, or runs a program of its user, `as_exception` gives
Python's own way back.
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

# As a shell counts a process that a signal ended: 128 and the signal's number.
EXIT_INTERRUPTED = 130
_PATIENCE_S = 0.3  # for the main thread to return from a native call
_CLEANUP_S = 1.0
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it

_undone: list[Callable[[], object]] = []
_program = ""
_wakeup: tuple[int, int] | None = None
_ending: int | None = None  # the thread that ends the process
_is_interrupted = False
_lock = threading.Lock()


def end_at_once(program: str) -> None:
    """Has Ctrl-C end this process, the command `program`; called again, changes the name alone.

    It does nothing outside the main thread, and where Ctrl-C is ignored or handled already.
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
        # Called last of all that is to be done at exit: what the program registered has run.
        atexit.register(_finish)
    _take()


@contextmanager
def as_exception() -> Iterator[None]:
    """Within it Ctrl-C is Python's KeyboardInterrupt; afterwards what it was before."""
    is_ours = signal.getsignal(signal.SIGINT) is _handle
    if is_ours:
        give_back()
    try:
        yield
    finally:
        if is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _take()


def leave_early() -> None:
    """Has a process that an interrupt has ended leave once what is to be done at exit is done."""
    global _is_interrupted
    _is_interrupted = True


@contextmanager
def done_at_interrupt(action: Callable[[], object]) -> Iterator[None]:
    """Within it, Ctrl-C that ends the process calls a function before, which must be quick."""
    _undone.append(action)
    try:
        yield
    finally:
        _undone.remove(action)


def removed_at_interrupt(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Within it, Ctrl-C that ends the process removes a folder that is not whole yet."""
    return done_at_interrupt(partial(shutil.rmtree, folder, ignore_errors=True))


def _take() -> None:
    assert _wakeup is not None, "the pipe is made first"
    signal.set_wakeup_fd(_wakeup[1], warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _handle)


def _forget() -> None:
    """Gives Ctrl-C back to Python in a forked child, which has the pipe and not the thread."""
    global _wakeup
    give_back()
    _wakeup = None


def give_back() -> None:
    """Gives Ctrl-C back to Python for good."""
    if signal.getsignal(signal.SIGINT) is _handle:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _finish() -> None:
    """Before Python takes itself apart: the command has its exit code, and keeps it."""
    if _is_interrupted:
        # Taking apart a process in the midst of a compilation took up to 10 s (2026-11-23).
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(EXIT_INTERRUPTED)
    if signal.getsignal(signal.SIGINT) is _handle:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _handle(number: int, frame: FrameType | None) -> None:
    _end()


def _watch(pipe: int) -> None:
    """Ends the process where a signal came and the main thread does not return to Python."""
    while True:
        if signal.SIGINT not in os.read(pipe, 64):
            continue
        time.sleep(_PATIENCE_S)
        if signal.getsignal(signal.SIGINT) is _handle:  # else the command has ended, or takes it
            threading.Thread(target=_end, daemon=True).start()
            time.sleep(_CLEANUP_S)
            os._exit(EXIT_INTERRUPTED)


def _end() -> None:
    """Says so, removes what is half done, and ends the process; one thread does, others wait."""
    global _ending
    if _ending == threading.get_ident():  # a second signal in the midst of it
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
