"""Work in child processes: a crash or hang is a result, and a new child takes over.

For work that may end its process, such as calling kernels with random arguments. Tasks and answers
are lines of JSON, and one child does many tasks because its imports take longer than most tasks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, TypeVar

__all__ = ["Child", "Say", "run_each", "serve"]

Task = TypeVar("Task")
Say = Callable[[Any], None]


class Child:
    """A process that runs ``python -m module``, started on demand and restarted after it ends.

    Attributes:
        is_late: whether the last process that ended was killed for taking too long.
        status: exit status of the last process that ended; negative for a signal.
        said: the last line of its standard error.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        timeout_s: float,
        start_s: float = 0.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Sets the program; starts nothing yet.

        Args:
            module: a module that calls `serve` or writes answers unprompted.
            arguments: its command line.
            timeout_s: seconds that one answer may take.
            start_s: additional seconds for the first answer of a process, for imports.
            environment: variables added to this process's environment.
        """
        self._command = [sys.executable, "-m", module, *arguments]
        self._timeout_s = timeout_s
        self._start_s = start_s
        self._environment = os.environ | dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._is_new = True
        self._is_killed = False
        self.is_late = False
        self.status = 0
        self.said = ""

    @property
    def signal_name(self) -> str:
        """The signal that ended the last process, such as SIGSEGV; empty for none."""
        return signal.Signals(-self.status).name if self.status < 0 else ""

    @property
    def end(self) -> str:
        """Describes how the last process ended."""
        return f"the process ended with {self.signal_name or f'status {self.status}'}"

    def give(self, task: object) -> None:
        """Writes a task; the answer reports a process that ended before reading it."""
        process = self._running()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()

    def answer(self) -> Any:
        """Returns the next answer; None if the process ended, or took too long and was killed.

        Raises InterruptedError after `kill`, when the end of the process has no meaning.
        """
        process = self._running()
        assert process.stdout is not None
        limit_s = self._timeout_s + (self._start_s if self._is_new else 0.0)
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        line = process.stdout.readline()
        self.is_late = not timer.is_alive()
        timer.cancel()
        self._is_new = False
        if line.endswith("\n"):  # a killed process may leave a partial line
            return json.loads(line)
        self.stop()
        if self._is_killed:
            raise InterruptedError("the child was ended on purpose")
        return None

    def answers(self) -> Iterator[Any]:
        """Yields answers until the process ends."""
        while (said := self.answer()) is not None:
            yield said

    def kill(self) -> None:
        """Ends the process immediately and permanently; thread-safe."""
        self._is_killed = True
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """Ends the process, if any, by closing its input."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            process.communicate()
        self.status = process.returncode
        assert self._errors is not None
        with self._errors as errors:
            errors.seek(0)
            written = [line for line in errors.read().splitlines() if line.strip()]
        self.said = written[-1] if written else ""

    def _running(self) -> subprocess.Popen[str]:
        if self._is_killed:
            raise InterruptedError("the child was ended on purpose")
        if self._process is None:
            self._errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115
            self._is_new = True
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=self._environment,
            )
        return self._process


def run_each(
    tasks: Iterable[Task],
    work: Callable[[Child, Task], object],
    *,
    jobs: int,
    make_child: Callable[[], Child],
) -> None:
    """Does every task once, on a pool of children.

    `work` gives a task to a child and takes its answers, on one thread per child. The first
    exception of `work` or `tasks` is raised; queued tasks are dropped.
    """
    waiting = iter(tasks)
    lock = threading.Lock()
    is_over = threading.Event()
    failures: list[Exception] = []

    def take() -> Iterator[Task]:
        while not is_over.is_set():
            with lock:
                try:
                    task = next(waiting)
                except StopIteration:
                    return
            yield task

    def run(child: Child) -> None:
        try:
            for task in take():
                work(child, task)
        except Exception as failure:  # noqa: BLE001  # raised again by the thread that waits
            failures.append(failure)
            is_over.set()
        finally:
            child.stop()

    children = [make_child() for _ in range(jobs)]
    threads = [threading.Thread(target=run, args=(child,)) for child in children]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        is_over.set()
        for child in children:
            child.kill()
        for thread in threads:
            thread.join()
        raise
    if failures:
        raise failures[0]


def serve(reply: Callable[[Any, Say], None]) -> None:
    """Runs the child's side: replies to tasks until there are no more.

    Redirects the libraries' output to standard error, away from the answers.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    for line in sys.stdin:
        reply(json.loads(line), say)
