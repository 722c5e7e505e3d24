"""Runs tasks in child processes; a crash or a timeout becomes a cell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from npu_command import children
from npu_command.children import Child
from npu_ops.errors import ConformanceError
from npu_ops.op_conformance.cell import Cell, Outcome

__all__ = ["run_each", "run_tasks"]

_WORKER = "npu_ops.op_conformance.running.worker"


def run_tasks(
    tasks: Iterable[dict[str, Any]],
    *,
    jobs: int,
    timeout_s: float,
    environment: dict[str, str],
    on_cells: Callable[[list[Cell]], object],
) -> None:
    """Runs every task once, on ``jobs`` children; passes cells to ``on_cells`` as they arrive.

    Args:
        tasks: tasks of `worker.run_task`, with the ``subject`` for the report.
        jobs: number of concurrent children.
        timeout_s: time limit of a task in seconds.
        environment: additional environment variables of the children.
        on_cells: callback, called by one thread at a time.
    """

    def collect(task: dict[str, Any], rows: list[Any] | None, ended: Cell | None) -> None:
        if ended is not None:
            on_cells([ended])
        elif rows is not None:
            on_cells([Cell(**{**row, "outcome": Outcome(row["outcome"])}) for row in rows])

    run_each(tasks, jobs=jobs, timeout_s=timeout_s, environment=environment, on_answer=collect)


def run_each(
    tasks: Iterable[dict[str, Any]],
    *,
    jobs: int,
    timeout_s: float,
    environment: dict[str, str],
    on_answer: Callable[[dict[str, Any], list[Any] | None, Cell | None], object],
) -> None:
    """Runs every task once; for tasks with results other than cells.

    Args:
        tasks: as in `run_tasks`.
        jobs: number of concurrent children.
        timeout_s: time limit of a task in seconds.
        environment: additional environment variables of the children.
        on_answer: callback, called by one thread at a time with a task and its result, or with a
            cell for a crashed child.

    Raises:
        ConformanceError: a task cannot run as requested, with the child's error code; waiting tasks
            are not started.
    """
    lock = threading.Lock()

    def work(child: Child, task: dict[str, Any]) -> None:
        child.give(task)
        rows = child.answer()
        if isinstance(rows, dict):
            raise ConformanceError(rows["message"], code=rows["code"])
        ended = _ended(child, task, timeout_s) if rows is None else None
        with lock:
            on_answer(task, rows, ended)

    def make_child() -> Child:
        return Child(_WORKER, timeout_s=timeout_s, environment=environment)

    children.run_each(tasks, work, jobs=jobs, make_child=make_child)


def _ended(child: Child, task: dict[str, Any], timeout_s: float) -> Cell:
    outcome, detail = _end_of(child, timeout_s)
    return Cell(
        task["subject"],
        task["dtype"],
        "any",  # the running check is unknown
        outcome,
        detail=detail,
        suite=task["suite"],
        case=task.get("case", ""),
        layout=task.get("layout", ""),
    )


def _end_of(child: Child, timeout_s: float) -> tuple[Outcome, str]:
    if child.is_late:
        return Outcome.TIMEOUT, f"took more than {timeout_s:g} s"
    return Outcome.SIGNAL if child.status < 0 else Outcome.FAILED, child.end
