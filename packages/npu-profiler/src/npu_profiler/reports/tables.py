"""Tables: rows under columns with units, as text for a terminal; and curves in one line."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

__all__ = [
    "Column",
    "Table",
    "Unit",
    "bin_highest",
    "format_bytes",
    "format_change",
    "format_ms",
    "format_share",
    "format_table",
    "own_name",
    "sparkline",
]

Unit = Literal["text", "count", "ns", "share", "change", "bytes", "number", "roof"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column."""

    key: str  # key for programs, with the unit: "self_ns"
    title: str  # title for people: "self ms"
    # Kind of values: times are nanoseconds; shares, changes and roof shares are fractions of 1.
    unit: Unit = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with a value or None per column."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]

    @classmethod
    def of(
        cls,
        title: str,
        columns: Sequence[Column],
        items: Iterable[Any],
        **cells: Callable[[Any], Any],
    ) -> "Table":
        """Creates a table with one row per item.

        A cell is the item's attribute named by the column's key, or the value of `cells` for that
        key.
        """
        getters = [cells.get(column.key) or attrgetter(column.key) for column in columns]
        return cls(title, columns, [tuple(get(item) for get in getters) for item in items])

    def records(self) -> list[dict[str, Any]]:
        """Returns the rows as dictionaries by column key."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]


# The minimum width of a text column, before it is shortened to fit the terminal.
_LEAST_TEXT = 24
_NO_VALUE = "-"


def format_table(table: Table, *, limit: int = 0) -> list[str]:
    """Returns lines: title, head, rows up to a limit (0: all), and the number of omitted rows."""
    rows = list(table.rows[:limit] if limit else table.rows)
    cells = [[column.title for column in table.columns]]
    cells += [
        [_cell(value, column.unit) for value, column in zip(row, table.columns, strict=True)]
        for row in rows
    ]
    is_text = [column.unit == "text" for column in table.columns]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    _fit(widths, is_text)
    lines = [table.title] if table.title else []
    lines += ["  " + _line(row, widths, is_text) for row in cells]
    if len(rows) < len(table.rows):
        lines.append(f"  ... and {len(table.rows) - len(rows):,} more (--top 0 shows all)")
    return lines


def format_ms(ns: float) -> str:
    """Formats milliseconds with enough digits: "1,234.5 ms", "0.0123 ms"."""
    return f"{_ms(ns)} ms"


def format_bytes(size: float) -> str:
    """Formats bytes with a binary unit: "1.5 MiB"."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:,.0f} B" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def format_share(share: float) -> str:
    """Formats a fraction in percent: "12.3 %"."""
    return f"{share:.1%}".replace("%", " %")


def format_change(change: float) -> str:
    """Formats a relative change in percent with its sign: "+12.3 %"."""
    return f"{change:+.1%}".replace("%", " %")


def _cell(value: Any, unit: Unit) -> str:
    if value is None:
        return _NO_VALUE
    if unit == "count":
        return f"{value:,}"
    if unit == "ns":
        return _ms(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "share":
        return format_share(value)
    if unit == "roof":  # the mark that a note below the table explains
        return f"* {format_share(value)}" if value > 1 else format_share(value)
    if unit == "change":
        return format_change(value)
    if unit == "number":
        return f"{value:,.4g}"
    return str(value)


def _ms(ns: float) -> str:
    ms = ns / 1e6
    digits = 1 if abs(ms) >= 100 else 2 if abs(ms) >= 10 else 3
    return f"{ms:,.{digits}f}"


def _fit(widths: list[int], is_text: Sequence[bool]) -> None:
    """Shortens the widest text columns until a line fits the terminal."""
    room = shutil.get_terminal_size((120, 24)).columns - 2 * len(widths)
    while sum(widths) > room:
        texts = [at for at, text in enumerate(is_text) if text and widths[at] > _LEAST_TEXT]
        if not texts:
            return
        widest = max(texts, key=widths.__getitem__)
        widths[widest] -= 1


def _shortened(text: str, width: int) -> str:
    """Keeps both ends: names of a model often differ only at their end."""
    tail = (width - 3) // 3
    return f"{text[: width - 3 - tail]}...{text[-tail:]}"


def _line(cells: Sequence[str], widths: Sequence[int], is_text: Sequence[bool]) -> str:
    parts = []
    for cell, width, text in zip(cells, widths, is_text, strict=True):
        shown = cell if len(cell) <= width else _shortened(cell, width)
        parts.append(shown.ljust(width) if text else shown.rjust(width))
    return "  ".join(parts).rstrip()


def own_name(layer: str, module: str) -> str:
    """Returns a layer's name without its module, which has a separate column."""
    return layer.removesuffix(f" {module}") if module else layer


_BLOCKS = "▁▂▃▄▅▆▇█"


def bin_highest(
    times: Sequence[int], values: Sequence[float], *, start_ns: int, end_ns: int, bins: int
) -> list[float]:
    """Returns the highest value in each part of an interval.

    A curve keeps its value until the next sample, and is 0 before the first.
    """
    highest = [0.0] * bins
    width = max(end_ns - start_ns, 1) / bins
    latest = 0.0
    at = 0
    for part in range(bins):
        edge = start_ns + (part + 1) * width
        highest[part] = latest
        while at < len(times) and (times[at] < edge or part == bins - 1):
            latest = values[at]
            highest[part] = max(highest[part], latest)
            at += 1
    return highest


def sparkline(heights: Sequence[float]) -> str:
    """Draws values as blocks, from 0 to the highest value."""
    top = max(heights, default=0.0)
    if top <= 0:
        return _BLOCKS[0] * len(heights)
    return "".join(_BLOCKS[min(int(value / top * 8), 7)] for value in heights)
