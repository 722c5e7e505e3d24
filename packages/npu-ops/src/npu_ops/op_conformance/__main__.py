"""``npu-ops conformance``: compares a device with the CPU or a baseline, and prints the verdict."""

from __future__ import annotations

import argparse
import base64
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from npu_command.output import is_quiet
from npu_command.subcommands import run as run_as_command
from npu_ops.errors import ConformanceError
from npu_ops.op_conformance.baseline import Baseline, BaselineWriter, load_baseline
from npu_ops.op_conformance.cases import interface_cases
from npu_ops.op_conformance.cell import Cell, Outcome
from npu_ops.op_conformance.models import model_cases
from npu_ops.op_conformance.report import (
    REPORTS,
    Run,
    failed_cells,
    rates_text,
    reproducer,
    summary,
)
from npu_ops.op_conformance.rules import load_rules
from npu_ops.op_conformance.running.supervision import run_each, run_tasks
from npu_ops.op_conformance.selection import parse, selection_of, tasks_of

__all__ = ["main"]

_SHOWN = 40  # printed failures; a report has all
_CAPTURED = 200  # failures
_MEGABYTE = 2**20
_ENDINGS = {"csv": "csv", "html": "html", "junit": "xml"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = parse(given)
    if arguments.baseline != "cpu":
        _check_baseline(load_baseline(arguments.baseline), arguments.baseline)
    if arguments.rules:
        load_rules(arguments.rules)
    tasks = tasks_of(
        selection_of(arguments),
        device=arguments.device,
        baseline=arguments.baseline,
        rules=arguments.rules,
        is_compiled=arguments.compiled,
    )
    if not tasks:
        raise ConformanceError(
            f"filters must leave a case to run, got {shlex.join(given)}. Widen them; --list shows "
            "all cases.",
            code="conformance-empty",
        )
    if arguments.list:
        for task in tasks:
            print(task.get("case") or f"{task['subject']} {task['dtype']}")
        return 0
    if arguments.save_baseline is not None:
        return _save(tasks, arguments)
    return _judge(tasks, arguments, given)


def _check_baseline(baseline: Baseline, place: str) -> None:
    """Checks before the work that the baseline is intact."""
    baseline.check()
    if not baseline.has_checksums:
        print(
            f"{place} is of a version without checksums: a damaged file in it looks like a failure "
            "of the device. Make it again to have them."
        )


def _judge(tasks: list[dict[str, Any]], arguments: argparse.Namespace, given: list[str]) -> int:
    cells: list[Cell] = []
    start = time.monotonic()
    counter = _Counter(len(tasks))

    def collect(answer: list[Cell]) -> None:
        counter.step()
        cells.extend(answer)

    run_tasks(tasks, on_cells=collect, **_pool(arguments))
    counter.end()
    cells.sort(key=lambda cell: (cell.suite, cell.check, cell.dtype, cell.subject, cell.case))
    failed = failed_cells(cells)
    run = Run(
        shlex.join(given),
        arguments.device,
        _versions(),
        time.monotonic() - start,
        _case_options(arguments),
        _capture(tasks, failed, arguments) if arguments.captures is not None else {},
    )
    print(summary(cells))
    print(rates_text(cells))
    for cell in failed[:_SHOWN]:
        print(
            f"{cell.outcome.upper()}  {cell.case or f'{cell.subject} {cell.dtype}'} {cell.check}: "
            f"{cell.detail}\n        {reproducer(cell, run)}"
        )
    if len(failed) > _SHOWN:
        print(f"... and {len(failed) - _SHOWN:,} more; --report html|csv|junit writes all")
    print(f"{len(failed):,} of {len(cells):,} cells failed in {run.duration_s:,.0f} s")
    if arguments.report:
        path = arguments.output or Path(f"conformance.{_ENDINGS[arguments.report]}")
        REPORTS[arguments.report](cells, run, path)
        print(f"{len(cells):,} cells in {path}")
    return 1 if failed else 0


def _capture(
    tasks: list[dict[str, Any]], failed: list[Cell], arguments: argparse.Namespace
) -> dict[tuple[str, str], str]:
    """Captures the calls of failed cases; returns the folders by case and check."""
    by_case = {task["case"]: task for task in tasks if "case" in task}
    wanted = [
        by_case[cell.case] | {"checks": [cell.check], "captures": str(arguments.captures)}
        for cell in failed
        if cell.outcome is Outcome.FAILED and cell.case in by_case and cell.check != "any"
    ]
    if len(wanted) > _CAPTURED:
        print(f"captured are the first {_CAPTURED} of {len(wanted):,} failures")
    folders: dict[tuple[str, str], str] = {}

    def collect(task: dict[str, Any], rows: list[Any] | None, end: Cell | None) -> None:
        for folder in rows or ():
            folders[task["case"], task["checks"][0]] = folder

    run_each(wanted[:_CAPTURED], on_answer=collect, **_pool(arguments))
    return folders


def _save(tasks: list[dict[str, Any]], arguments: argparse.Namespace) -> int:
    from safetensors.torch import load

    writer = BaselineWriter(
        arguments.save_baseline,
        arguments.budget * _MEGABYTE,
        {"device": arguments.device, "machine": platform.machine(), "versions": _versions()},
    )
    known = interface_cases() | model_cases()
    counter = _Counter(len(tasks))
    ended: list[Cell] = []

    def collect(task: dict[str, Any], rows: list[Any] | None, end: Cell | None) -> None:
        counter.step()
        if end is not None:
            ended.append(end)
        for row in rows or ():
            data = row["data"]
            tensors = load(base64.b64decode(data)) if data else {}
            packed = (row["record"], tensors)
            writer.add(known[task["case"]], row["check"], row["inputs"], packed)

    run_each([task | {"saves": True} for task in tasks], on_answer=collect, **_pool(arguments))
    counter.end()
    writer.write()
    print(
        f"{len(tasks):,} cases in {arguments.save_baseline}: {writer.size_bytes / _MEGABYTE:,.1f} "
        f"MB of tensors of at most {arguments.budget:,}"
    )
    if writer.left_out:
        print(f"{len(writer.left_out):,} results did not fit; --budget MB makes room")
    for cell in ended:
        print(f"{cell.outcome.upper()}  {cell.case}: {cell.detail}")
    return 1 if ended else 0


def _pool(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "jobs": max(1, arguments.jobs),
        "timeout_s": arguments.timeout,
        "environment": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
        | ({"NPU_OPS_VARIANT": arguments.variants} if arguments.variants else {}),
    }


def _case_options(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the options besides the id that repeat a single case."""
    named = (
        ("--device", arguments.device, "npu"),
        ("--baseline", arguments.baseline, "cpu"),
        ("--rules", arguments.rules, ""),
        ("--variants", arguments.variants, None),
    )
    return tuple(
        word for option, value, usual in named if value != usual for word in (option, value)
    )


def _versions() -> str:
    names = ("npu-ops", "npu-runtime")
    return ", ".join([f"torch {torch.__version__}", *(f"{n} {version(n)}" for n in names)])


class _Counter:
    """A counter of finished tasks on a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._is_shown = sys.stderr.isatty() and not is_quiet()

    def step(self) -> None:
        self._done += 1
        if self._is_shown:
            text = f"\r{self._done:,} of {self._total:,} "
            print(text, end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_shown:
            print(file=sys.stderr)


if __name__ == "__main__":
    sys.argv[1:1] = ["conformance"]
    sys.exit(run_as_command("npu_ops"))
