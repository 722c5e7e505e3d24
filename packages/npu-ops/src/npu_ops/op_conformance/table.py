"""The verdict for people and for programs: a table by check and dtype, and a CSV of all cells."""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_ops.incomparable_ops import EXPECTED
from npu_ops.op_conformance.cell import Cell, Outcome

__all__ = ["Rate", "failed_cells", "rates", "rates_text", "read_csv", "summary", "write_csv"]


@dataclass(frozen=True)
class Rate:
    """How much of an op is right.

    Attributes:
        suite: where its cells come from.
        subject: the op.
        right: cells that passed.
        total: cells that were compared.
    """

    suite: str
    subject: str
    right: int
    total: int


def failed_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Cells that differ, or ended the process, and are not in the list of exceptions."""
    good = (Outcome.PASSED, Outcome.EMPTY)
    return [
        cell
        for cell in cells
        if cell.outcome not in good and (cell.subject, cell.dtype, cell.check) not in EXPECTED
    ]


def summary(cells: Sequence[Cell]) -> str:
    """Cells right and in all, by check and dtype, as lines of text."""
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
    """The success rate of each op, the lowest first."""
    total: Counter[tuple[str, str]] = Counter()
    right: Counter[tuple[str, str]] = Counter()
    for cell in cells:
        if cell.outcome is not Outcome.EMPTY:
            total[cell.suite, cell.subject] += 1
            right[cell.suite, cell.subject] += cell.outcome is Outcome.PASSED
    found = [Rate(*key, right[key], count) for key, count in total.items()]
    return sorted(found, key=lambda rate: (rate.right / rate.total, rate.suite, rate.subject))


def rates_text(cells: Iterable[Cell]) -> str:
    """The ops of which something is wrong, as lines of text, and how many there are."""
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
    """The cells that `write_csv` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_cell(row) for row in csv.DictReader(file)]


def _cell(row: dict[str, str]) -> Cell:
    kinds = {"outcome": Outcome, "samples": int, "failures": int, "programs": int}
    kinds["duration_s"] = float
    return Cell(**{name: kinds.get(name, str)(value) for name, value in row.items()})


def write_csv(cells: Iterable[Cell], path: Path) -> None:
    """Writes one line for each cell, with a heading."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in dataclasses.fields(Cell))
        writer.writerows(dataclasses.astuple(cell) for cell in cells)
