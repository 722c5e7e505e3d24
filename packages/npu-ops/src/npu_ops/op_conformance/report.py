"""Reports of a run's cells: tables as text, CSV of all, HTML, JUnit XML for CI.

Each failure has a command that repeats it.
"""

from __future__ import annotations

import csv
import dataclasses
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from npu_command.output import render_page
from npu_ops.op_conformance.cell import Cell, Outcome
from npu_ops.op_conformance.models import model_cases
from npu_ops.tolerances import EXPECTED

__all__ = [
    "REPORTS",
    "Rate",
    "Run",
    "failed_cells",
    "rates",
    "rates_text",
    "read_csv",
    "reproducer",
    "summary",
    "write_csv",
]


@dataclass(frozen=True)
class Rate:
    """The success rate of an op.

    Attributes:
        suite: suite of its cells.
        subject: the op.
        right: number of cells that passed.
        total: number of compared cells.
    """

    suite: str
    subject: str
    right: int
    total: int


def failed_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Returns the cells that differ or crashed, without the expected exceptions."""
    good = (Outcome.PASSED, Outcome.EMPTY)
    return [
        cell
        for cell in cells
        if cell.outcome not in good and (cell.subject, cell.dtype, cell.check) not in EXPECTED
    ]


def summary(cells: Sequence[Cell]) -> str:
    """Returns passed and compared cells by check and dtype, as lines of text."""
    total: Counter[tuple[str, str]] = Counter()
    right: Counter[tuple[str, str]] = Counter()
    for cell in cells:
        if cell.outcome is Outcome.EMPTY:
            continue
        total[cell.check, cell.dtype] += 1
        right[cell.check, cell.dtype] += cell.outcome is Outcome.PASSED
    rows = [
        f"{check:16}{dtype:12}{right[check, dtype]:>7,} of {count:>7,}"
        f"{right[check, dtype] / count:>10.2%}"
        for (check, dtype), count in total.items()
    ]
    count = sum(total.values())
    if count:
        passed = sum(right.values())
        samples = sum(cell.samples for cell in cells)
        rows.append(
            f"{'all':28}{passed:>7,} of {count:>7,}{passed / count:>10.2%}  ({samples:,} samples)"
        )
    served = [cell for cell in cells if cell.programs]
    if served:
        calls = sum(cell.programs for cell in served)
        samples = sum(cell.samples for cell in served)
        rows.append(
            f"programs served {calls:,} calls, in {len(served):,} cells of {samples:,} samples"
        )
    return "\n".join(rows)


def rates(cells: Iterable[Cell]) -> list[Rate]:
    """Returns the success rate of each op, the lowest first."""
    total: Counter[tuple[str, str]] = Counter()
    right: Counter[tuple[str, str]] = Counter()
    for cell in cells:
        if cell.outcome is not Outcome.EMPTY:
            total[cell.suite, cell.subject] += 1
            right[cell.suite, cell.subject] += cell.outcome is Outcome.PASSED
    found = [Rate(*key, right[key], count) for key, count in total.items()]
    return sorted(found, key=lambda rate: (rate.right / rate.total, rate.suite, rate.subject))


def rates_text(cells: Iterable[Cell]) -> str:
    """Returns the ops with failures, as lines of text, and their number."""
    found = rates(cells)
    low = [rate for rate in found if rate.right < rate.total]
    rows = [
        f"{rate.subject:44}{rate.right:>7,} of {rate.total:>7,}{rate.right / rate.total:>10.2%}"
        for rate in low
    ]
    return "\n".join(
        [f"{len(found) - len(low):,} of {len(found):,} ops are right throughout", *rows]
    )


def read_csv(path: Path) -> list[Cell]:
    """Reads the cells written by `write_csv`."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_cell(row) for row in csv.DictReader(file)]


def _cell(row: dict[str, str]) -> Cell:
    kinds = {"outcome": Outcome, "samples": int, "failures": int, "programs": int}
    kinds["duration_s"] = float
    return Cell(**{name: kinds.get(name, str)(value) for name, value in row.items()})


def write_csv(cells: Iterable[Cell], path: Path) -> None:
    """Writes a header, and a line per cell."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in dataclasses.fields(Cell))
        writer.writerows(dataclasses.astuple(cell) for cell in cells)


_TEMPLATE = Path(__file__).with_name("report.html")


@dataclass(frozen=True)
class Run:
    """Facts about a run besides its cells.

    Attributes:
        command: the command line without the program's name.
        device: name of the tested device.
        versions: one line.
        duration_s: seconds from the first task to the last.
        options: options that a single case needs for the same run, such as `--device cpu`.
        captures: case and check -> folder of captured failing calls.
    """

    command: str
    device: str
    versions: str
    duration_s: float
    options: tuple[str, ...] = ()
    captures: Mapping[tuple[str, str], str] = field(default_factory=dict)


def reproducer(cell: Cell, run: Run) -> str:
    """Returns the command that repeats a failure: its captured calls, or else the cell."""
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
    """Writes a self-contained page: rates by op and network, failures with their commands."""
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
    """Writes JUnit XML: a suite per op, a test per check of a case."""
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


# Value of --report -> writer.
REPORTS: dict[str, Callable[[Sequence[Cell], Run, Path], None]] = {
    "csv": _write_csv,
    "html": write_html,
    "junit": write_junit,
}


def _network_rates(cells: Iterable[Cell]) -> list[tuple[str, int, int]]:
    """Returns networks with their numbers of passed and compared checks."""
    right: dict[str, int] = {}
    total: dict[str, int] = {}
    for cell in cells:
        if cell.suite != "models" or cell.outcome is Outcome.EMPTY:
            continue
        for name in model_cases()[cell.case].models:
            total[name] = total.get(name, 0) + 1
            right[name] = right.get(name, 0) + (cell.outcome is Outcome.PASSED)
    return [(name, right[name], total[name]) for name in sorted(total)]
