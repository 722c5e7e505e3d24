"""Reports of tools: a table for the terminal, CSV and HTML.

The page's template is `report.html`.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_command.output import render_page
from npu_runtime.public_calls import public_call

__all__ = ["Report"]

Value = str | int | float | None

_WIDEST = 70  # maximum column width in the terminal
_TEMPLATE = Path(__file__).with_name("report.html")


@dataclass(frozen=True)
class Report:
    """A table with a verdict.

    Attributes:
        title: title of the report.
        columns: column names, with units.
        rows: rows with one value per column.
        summary: the finding, in a sentence or two.
        marked: indices of rows with findings.
        is_passed: whether the tool found no error.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    summary: str
    marked: frozenset[int] = frozenset()
    is_passed: bool = True

    def table(self, most_rows: int | None = None) -> str:
        """Returns the rows in columns, marked ones first, and the summary below.

        Args:
            most_rows: maximum number of rows; None for all.
        """
        order = sorted(range(len(self.rows)), key=lambda number: number not in self.marked)
        shown = [[_text(value)[:_WIDEST] for value in self.rows[n]] for n in order[:most_rows]]
        lines = []
        if shown:
            widths = [max(map(len, column)) for column in zip(self.columns, *shown, strict=True)]
            lines = [_line(self.columns, widths), *(_line(row, widths) for row in shown)]
        left = len(self.rows) - len(shown)
        return "\n".join([*lines, *([f"... and {left:,} more rows"] if left else []), self.summary])

    @public_call
    def write_csv(self, path: str | Path) -> None:
        """Writes the column names and all rows."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows(["" if value is None else value for value in row] for row in self.rows)

    @public_call
    def write_html(self, path: str | Path) -> None:
        """Writes a self-contained HTML page."""
        page = render_page(
            _TEMPLATE,
            title=self.title,
            summary=self.summary,
            columns=self.columns,
            rows=[(number in self.marked, _cells(row)) for number, row in enumerate(self.rows)],
        )
        Path(path).write_text(page, encoding="utf-8")

    @public_call
    def write(self, directory: Path, name: str) -> list[Path]:
        """Writes both files into a directory; returns their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        files = [directory / f"{name}.csv", directory / f"{name}.html"]
        self.write_csv(files[0])
        self.write_html(files[1])
        return files

    def __str__(self) -> str:
        return self.table()


def _text(value: Value) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _line(words: Sequence[str], widths: list[int]) -> str:
    return "  ".join(f"{word:{wide}}" for word, wide in zip(words, widths, strict=True)).rstrip()


def _cells(row: tuple[Value, ...]) -> list[tuple[bool, str]]:
    """Returns whether a value is a number, and its text."""
    return [(isinstance(value, int | float), _text(value)) for value in row]
