"""A table: columns with a unit, and rows of plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Column", "Table", "Unit"]

Unit = Literal["text", "count", "ns", "share", "change", "bytes", "number", "roof"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        key: for programs, with the unit in it: "self_ns".
        title: for people: "self ms".
        unit: of its values: times are nanoseconds, shares, changes and parts of a
            roof are parts of one.
    """

    key: str
    title: str
    unit: Unit = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, each with a value or None for each column."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]

    def records(self) -> list[dict[str, Any]]:
        """The rows by the columns' keys."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]
