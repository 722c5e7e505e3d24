"""Work in child processes: one that dies or hangs is a result, and the next child takes over.

For what may end the process that does it, such as kernels called with random arguments. Tasks and
answers are lines of JSON, so that one child does many tasks: its imports take longer than most.
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
    """A process that runs ``python -m module``, started when it is needed and again after it ended.

    Attributes:
        is_late: whether the last process that ended was killed for taking too long.
        status: exit status of the last process that ended; negative for a signal.
        said: the last line that it wrote to standard error.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        timeout_s: float,
        start_s: float = 0.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Names what runs; nothing is started yet.

        Args:
            module: what calls `serve`, or writes answers of its own accord.
            arguments: its command line.
            timeout_s: seconds that one answer may take.
            start_s: seconds that the first answer of a process may take beyond that, for imports.
            environment: variables that it has beside this process's own.
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
        """How the last process ended, in words."""
        return f"the process ended with {self.signal_name or f'status {self.status}'}"

    def give(self, task: object) -> None:
        """Writes a task; if the process ends before it reads it, the answer shows that."""
        process = self._running()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()

    def answer(self) -> Any:
        """Returns the next answer; None if the process ended, or took too long and was killed.

        Raises InterruptedError after `kill`, where the end of the process means nothing.
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
        if line.endswith("\n"):  # a process that is killed may leave a part of one
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
        """Ends the process at once, and for good; any thread may call it."""
        self._is_killed = True
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """Lets the process end, if there is one, by the end of its input."""
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
    """Does every task once, on so many children at a time, as they are free.

    `work` gives a task to a child and takes its answers, on a thread for each child. What it or
    `tasks` raises first goes on; tasks that wait are not begun.
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
    """Is the child's side: replies to tasks until there are no more.

    What libraries print goes to standard error from now on, where it is no answer.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    for line in sys.stdin:
        reply(json.loads(line), say)
