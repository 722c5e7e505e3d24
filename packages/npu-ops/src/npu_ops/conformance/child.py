"""A child process that takes tasks as lines and answers with lines; it may die or hang."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

__all__ = ["Child"]


class Child:
    """A worker process, started at the first task and again after it ended.

    Attributes:
        is_late: whether the last child that ended was ended for taking too long.
        status: the exit status of the last child that ended; negative for a signal.
    """

    def __init__(
        self, module: str, *, timeout_s: float, environment: dict[str, str], greets: bool = False
    ) -> None:
        """Prepares a child that runs ``python -m module``.

        Args:
            module: what reads tasks from standard input, one line of JSON each.
            timeout_s: seconds that one answer may take.
            environment: variables that the child has beside this process's own.
            greets: whether it writes a line when it is ready, which has no time limit.
        """
        self._command = [sys.executable, "-m", module]
        self._timeout_s = timeout_s
        self._environment = os.environ | environment
        self._greets = greets
        self._process: subprocess.Popen[str] | None = None
        self.is_late = False
        self.status = 0

    @property
    def end(self) -> str:
        """How the last child ended, for a report."""
        if self.status < 0:
            return f"the process ended with {signal.Signals(-self.status).name}"
        return f"the process ended with status {self.status}"

    def give(self, task: dict[str, Any]) -> None:
        """Writes a task; that a child ended before it read one shows in the answer."""
        process = self._process or self._start()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()

    def answer(self) -> Any:
        """The next line, read; None when the child ended instead or took too long."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        timer = threading.Timer(self._timeout_s, process.kill)
        timer.start()
        line = process.stdout.readline()
        self.is_late = not timer.is_alive()
        timer.cancel()
        if line:
            return json.loads(line)
        self.stop()
        return None

    def stop(self) -> None:
        """Lets the process end, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            process.communicate()
        self.status = process.returncode

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
        )
        if self._greets:
            assert self._process.stdout is not None
            self._process.stdout.readline()
        return self._process
