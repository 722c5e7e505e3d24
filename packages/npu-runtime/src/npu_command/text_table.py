"""Columns of text for a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

__all__ = ["aligned", "terminal_width"]

_LEAST = 24  # a last column narrower than this is not wrapped: it would be a word a line


def terminal_width() -> int | None:
    """How many characters a line of the terminal has; None where output goes to a program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def aligned(
    rows: Sequence[Sequence[str]], *, indent: int = 0, width: int | None = None
) -> list[str]:
    """Returns the lines of the rows, with the columns two spaces apart.

    Args:
        rows: of equal length, such as [("npu-runtime", "0.1.0"), ("torch", "2.13.0")].
        indent: spaces before each line.
        width: where the last column goes on in the next line, between words; None for nowhere.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for *cells, last in rows:
        columns = [cell.ljust(wide) for cell, wide in zip(cells, widths, strict=False)]
        head = " " * indent + "".join(f"{column}  " for column in columns)
        if width is None or width - len(head) < _LEAST:
            lines.append(f"{head}{last}".rstrip())
            continue
        # Paths and commands are copied from here: none is broken in its middle.
        parts = textwrap.wrap(
            last, width - len(head), break_long_words=False, break_on_hyphens=False
        )
        lines.append(f"{head}{parts[0] if parts else ''}".rstrip())
        lines += [" " * len(head) + part for part in parts[1:]]
    return lines
