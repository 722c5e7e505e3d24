"""Runs a function in a forked child, so that a driver that crashes or hangs ends only that.

This module forks, unlike npu_command.children: the function and its loaded driver cannot be sent
through a pipe.
"""

import faulthandler
import json
import mmap
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Ended", "LastCall", "run_isolated"]

_NAME_BYTES = 64


class LastCall:
    """The name of the driver function that a child called last, readable after its death."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _NAME_BYTES)

    def set(self, function: str) -> None:
        """Records the next call."""
        self._shared[:_NAME_BYTES] = function.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")

    def get(self) -> str:
        """Returns the latest call; empty before the first."""
        return self._shared[:_NAME_BYTES].rstrip(b"\0").decode()


@dataclass(frozen=True)
class Ended:
    """The end of a child: its function's value or problem, and the last driver call."""

    value: Any
    problem: str
    last_call: str


def run_isolated(function: Callable[[LastCall], Any], *, timeout_s: float) -> Ended:
    """Runs a function that returns JSON in a forked child, with a time limit."""
    last_call = LastCall()
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as printed:
        child = os.fork()
        if child == 0:
            os.close(reading)
            _run_in_child(function, last_call, writing, printed.fileno())
        os.close(writing)
        answer = _read_answer(reading, time.monotonic() + timeout_s)
        os.close(reading)
        if answer is None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        printed.seek(0)
        said = printed.read().decode(errors="replace").strip().splitlines()
    name = last_call.get()
    where = f" in {name}" if name else ""
    if answer is None:
        return Ended(None, f"did not return within {timeout_s:g} s{where}", name)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        last_line = f"; it printed: {said[-1]}" if said else ""
        shown = f"{number} ({signal.Signals(number).name})"
        return Ended(None, f"ended by signal {shown}{where}{last_line}", name)
    if not answer:
        return Ended(None, f"ended with exit code {os.WEXITSTATUS(status)}{where}", name)
    return Ended(json.loads(answer), "", name)


def _run_in_child(
    function: Callable[[LastCall], Any], last_call: LastCall, writing: int, printed: int
) -> None:
    """Never returns, so that the parent's open files and exit handlers are not run twice."""
    faulthandler.disable()  # the parent reports a crash in one line
    sys.stdout.flush()
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    try:
        answer = json.dumps(function(last_call)).encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    except BaseException:  # noqa: BLE001  # the parent sees an empty answer
        os._exit(1)
    os._exit(0)


def _read_answer(pipe: int, deadline: float) -> bytes | None:
    """Reads until the child closes the pipe; None after a timeout."""
    answer = b""
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(pipe, 1 << 16)
        if not part:
            return answer
        answer += part
