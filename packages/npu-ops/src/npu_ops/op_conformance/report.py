"""A run's cells as files: CSV of all, HTML for people, JUnit XML for CI.

Each failure comes with the command that runs it again.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from npu_command.pages import render_page
from npu_ops.op_conformance.cell import Cell, Outcome
from npu_ops.op_conformance.models import model_cases
from npu_ops.op_conformance.table import failed_cells, rates, write_csv

__all__ = ["REPORTS", "Run", "reproducer"]

_TEMPLATE = Path(__file__).with_name("report.html")


@dataclass(frozen=True)
class Run:
    """What is said of a run beside its cells.

    Attributes:
        command: as it was typed, without the program's name.
        device: name of the device that was judged.
        versions: one line.
        duration_s: seconds from the first task to the last.
        options: what a single case needs to be run in the same way, such as `--device cpu`.
        captures: case and check -> folder of the calls that show the failure.
    """

    command: str
    device: str
    versions: str
    duration_s: float
    options: tuple[str, ...] = ()
    captures: Mapping[tuple[str, str], str] = field(default_factory=dict)


def reproducer(cell: Cell, run: Run) -> str:
    """The command that shows a failure again: its calls alone if they are captured, or the cell."""
    folder = run.captures.get((cell.case, cell.check))
    if folder is not None:
        place = () if run.device == "npu" else ("--device", run.device)
        return shlex.join(["npu-ops", "replay", folder, "--acc-check", *place])
    if cell.case:
        words = ["--case", cell.case]
    else:
        words = ["--suite", "torch", "--op", cell.subject, "--dtype", cell.dtype]
    return shlex.join(["npu-ops", "conformance", *words, *run.options])


def write_html(cells: Sequence[Cell], run: Run, path: Path) -> None:
    """Writes a page that stands alone: rates by op and network, failures with their commands."""
    page = render_page(
        _TEMPLATE,
        run=run,
        checks=sum(cell.samples for cell in cells),
        failed=[(cell, reproducer(cell, run)) for cell in failed_cells(cells)],
        ops=rates(cells),
        networks=_network_rates(cells),
    )
    path.write_text(page, encoding="utf-8")


def write_junit(cells: Sequence[Cell], run: Run, path: Path) -> None:
    """Writes JUnit XML: a suite for each op, a test for each check of a case."""
    root = ElementTree.Element("testsuites", name="npu-ops conformance")
    bad = {id(cell) for cell in failed_cells(cells)}
    by_op: dict[str, list[Cell]] = {}
    for cell in cells:
        by_op.setdefault(f"{cell.suite}.{cell.subject}", []).append(cell)
    for name, of_op in sorted(by_op.items()):
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(of_op)),
            failures=str(sum(id(cell) in bad for cell in of_op)),
            skipped=str(sum(cell.outcome is Outcome.EMPTY for cell in of_op)),
            time=f"{sum(cell.duration_s for cell in of_op):.4f}",
        )
        for cell in of_op:
            test = ElementTree.SubElement(
                suite,
                "testcase",
                classname=name,
                name=f"{cell.case or cell.dtype} {cell.check}",
                time=f"{cell.duration_s:.4f}",
            )
            if id(cell) in bad:
                failure = ElementTree.SubElement(test, "failure", message=cell.outcome)
                failure.text = f"{cell.detail}\n{reproducer(cell, run)}"
            elif cell.outcome is Outcome.EMPTY:
                ElementTree.SubElement(test, "skipped", message=cell.detail)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _write_csv(cells: Sequence[Cell], run: Run, path: Path) -> None:
    write_csv(cells, path)


# What --report takes -> what writes it.
REPORTS: dict[str, Callable[[Sequence[Cell], Run, Path], None]] = {
    "csv": _write_csv,
    "html": write_html,
    "junit": write_junit,
}


def _network_rates(cells: Iterable[Cell]) -> list[tuple[str, int, int]]:
    """Networks, how many of their checks were right, and of how many."""
    right: dict[str, int] = {}
    total: dict[str, int] = {}
    for cell in cells:
        if cell.suite != "models" or cell.outcome is Outcome.EMPTY:
            continue
        for name in model_cases()[cell.case].models:
            total[name] = total.get(name, 0) + 1
            right[name] = right.get(name, 0) + (cell.outcome is Outcome.PASSED)
    return [(name, right[name], total[name]) for name in sorted(total)]
