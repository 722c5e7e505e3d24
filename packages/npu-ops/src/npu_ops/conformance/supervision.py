"""Runs tasks in child processes; one that ends by a signal, or hangs, becomes a cell."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from .cell import Cell, Outcome

__all__ = ["run_tasks"]


def run_tasks(
    tasks: Iterable[dict[str, Any]],
    *,
    jobs: int,
    timeout_s: float,
    environment: dict[str, str],
    on_cells: Callable[[list[Cell]], object],
) -> None:
    """Runs every task once, on ``jobs`` children; ``on_cells`` gets the cells as they come.

    Args:
        tasks: What `worker.run_task` takes, with the ``subject`` for the report.
        jobs: Children at a time.
        timeout_s: Seconds that one task may take.
        environment: Variables that the children have beside this process's own.
        on_cells: Called by one thread at a time.
    """
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    lock = threading.Lock()

    def work() -> None:
        child = _Child(environment)
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                child.stop()
                return
            cells = child.run(task, timeout_s)
            with lock:
                on_cells(cells)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Child:
    """A worker process, started again after it died."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = os.environ | environment
        self._process: subprocess.Popen[str] | None = None

    def run(self, task: dict[str, Any], timeout_s: float) -> list[Cell]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
        if answer:
            return [
                Cell(**{**row, "outcome": Outcome(row["outcome"])}) for row in json.loads(answer)
            ]
        status = self.stop()
        outcome, detail = _end_of(status, is_late=is_late, timeout_s=timeout_s)
        checks = "any"  # which of them was running is not known
        return [Cell(task["subject"], task["dtype"], checks, outcome, detail=detail)]

    def stop(self) -> int:
        """Lets the process end, if there is one, and returns its status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(BrokenPipeError):
            process.communicate()
        return process.returncode

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "npu_ops.conformance.worker"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
        )
        return self._process


def _end_of(status: int, *, is_late: bool, timeout_s: float) -> tuple[Outcome, str]:
    if is_late:
        return Outcome.TIMEOUT, f"took more than {timeout_s:g} s"
    if status < 0:
        return Outcome.SIGNAL, f"the process ended with {signal.Signals(-status).name}"
    return Outcome.FAILED, f"the process ended with status {status}"
