"""A run's cells as files: CSV of all, HTML for people, JUnit XML for CI.

What the terminal shows is in table.py. Each failure comes with the command that runs it again.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from .cell import Cell, Outcome
from .models import model_cases
from .table import Rate, failed_cells, rates, write_csv

__all__ = ["REPORTS", "Run", "reproducer"]


@dataclass(frozen=True)
class Run:
    """What is said of a run beside its cells.

    Attributes:
        command: As it was typed, without the program's name.
        device: Name of the device that was judged.
        versions: One line.
        duration_s: Seconds from the first task to the last.
        options: What a single case needs to be run in the same way, such as `--device cpu`.
        captures: Case and check -> folder of the calls that show the failure.
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
    failed = failed_cells(cells)
    networks = _network_rates(cells)
    checks = sum(cell.samples for cell in cells)
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>Conformance: {_text(run.device)}</title><style>{_STYLE}</style>",
        f"<h1>Conformance of {_text(run.device)}</h1>",
        f"<p><code>npu-ops conformance {_text(run.command)}</code><br>{_text(run.versions)}<br>",
        f"{checks:,} checks in {run.duration_s:,.0f} s, {len(failed):,} failed.</p>",
        _section("Failures", ["case", "check", "what differs", "again"], _failures(failed, run)),
        _section("Ops", ["suite", "op", "right", "of", "share"], map(_rate_row, rates(cells))),
        _section("Networks", ["network", "right", "of", "share"], networks),
    ]
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


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

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ccc;padding:.2rem "
    ".6rem;text-align:left;vertical-align:top}td.n{text-align:right}.low{color:#b00020}"
    "code{font-size:13px;overflow-wrap:anywhere}"
)


def _failures(cells: Iterable[Cell], run: Run) -> list[str]:
    return [
        f"<tr><td><code>{_text(cell.case or f'{cell.subject} {cell.dtype}')}</code><td>"
        f"{_text(cell.check)}, {cell.outcome}<td>{_text(cell.detail)}<td><code>"
        f"{_text(reproducer(cell, run))}</code>"
        for cell in cells
    ]


def _rate_row(rate: Rate) -> str:
    return f"<tr><td>{rate.suite}<td>{_text(rate.subject)}{_numbers(rate.right, rate.total)}"


def _network_rates(cells: Iterable[Cell]) -> list[str]:
    right: dict[str, int] = {}
    total: dict[str, int] = {}
    for cell in cells:
        if cell.suite != "models" or cell.outcome is Outcome.EMPTY:
            continue
        for name in model_cases()[cell.case].models:
            total[name] = total.get(name, 0) + 1
            right[name] = right.get(name, 0) + (cell.outcome is Outcome.PASSED)
    return [f"<tr><td>{name}{_numbers(right[name], total[name])}" for name in sorted(total)]


def _numbers(right: int, total: int) -> str:
    low = "" if right == total else " low"
    return f"<td class=n>{right:,}<td class=n>{total:,}<td class='n{low}'>{right / total:.2%}"


def _section(title: str, columns: Sequence[str], rows: Iterable[str]) -> str:
    lines = list(rows)
    if not lines:
        return f"<h2>{title}</h2><p>None.</p>"
    head = "".join(f"<th>{column}" for column in columns)
    return f"<h2>{title}</h2><table><tr>{head}{''.join(lines)}</table>"


def _text(value: object) -> str:
    return html.escape(str(value))
