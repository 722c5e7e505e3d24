"""Columns of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["aligned"]


def aligned(rows: Sequence[Sequence[str]], *, indent: int = 0) -> list[str]:
    """Returns one line per row, with the columns two spaces apart.

    Args:
        rows: of equal length, such as [("npu-runtime", "0.1.0"), ("torch", "2.13.0")].
        indent: spaces before each line.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        " " * indent
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
