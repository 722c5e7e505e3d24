"""Measurements as a table for a terminal and as a CSV.

The page of the documentation is made in page.py.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from npu_compiler.suite.measurement import BOUND, Measurement

__all__ = ["HEADER", "cells", "read_csv", "row_line", "summary", "verdict", "write_csv"]

HEADER = ("model", "family", "breaks", "graphs", "programs", "lowered", "error", "compile s", "")
_WIDTHS = (30, 18, 6, 6, 8, 12, 8, 9, 0)


def cells(row: Measurement) -> tuple[str, ...]:
    """A measurement as the cells of one line, under HEADER."""
    name = row.name if row.draw is None else f"{row.name}, draw {row.draw}"
    if not row.finished:
        return (name, row.family, "", "", "", "", "", "", verdict(row))
    return (
        name,
        row.family,
        str(row.graph_breaks),
        str(row.graphs),
        str(row.programs),
        f"{row.lowered} of {row.nodes}",
        f"{row.error:.1e}",
        f"{row.compile_time_s:.1f}",
        verdict(row),
    )


def verdict(row: Measurement) -> str:
    """Whether a model is right and whole, and why not."""
    if not row.finished:
        return f"{'left out' if row.is_left_out else 'FAILED'}: {row.detail}"
    if row.false_alarm:
        return f"FALSE ALARM: {row.false_alarm}"
    if not row.is_right:
        return f"WRONG: {row.detail}" if row.detail else "WRONG"
    rounding = f"eager itself is off by {row.rounding:.1e}" if row.rounding else ""
    state = ("whole",) if row.is_whole else ("right", row.detail)
    return "; ".join(filter(None, (*state, rounding)))


def row_line(values: Sequence[str]) -> str:
    """Cells as a line of fixed columns."""
    padded = (value.ljust(width) for value, width in zip(values, _WIDTHS, strict=True))
    return " ".join(padded).rstrip()


def summary(rows: Sequence[Measurement]) -> str:
    """How many are right and how many are whole."""
    left_out = sum(row.is_left_out for row in rows)
    rows = [row for row in rows if not row.is_left_out]
    right = sum(row.is_right for row in rows)
    whole = sum(row.is_whole for row in rows)
    return (
        f"{len(rows)} architectures: {right} right (error at most {BOUND:.0e}), {whole} whole (one "
        "program with every node lowered, no graph break)"
        + (f"; {left_out} draws left out, which torch does not take" if left_out else "")
    )


def write_csv(rows: Iterable[Measurement], file: Path) -> None:
    """Writes one line per measurement, with a header."""
    names = [field.name for field in dataclasses.fields(Measurement)]
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)


def read_csv(file: Path) -> list[Measurement]:
    """The measurements that `write_csv` wrote."""
    with file.open(newline="", encoding="utf-8") as stream:
        return [_measurement(line) for line in csv.DictReader(stream)]


def _measurement(line: dict[str, str]) -> Measurement:
    values: dict[str, Any] = dict(line)
    for name in ("graph_breaks", "graphs", "programs", "nodes", "lowered"):
        values[name] = int(line[name])
    for name in ("error", "compile_time_s", "rounding"):
        values[name] = float(line[name])
    values["draw"] = int(line["draw"]) if line.get("draw") else None
    return Measurement(**{**values, "finished": line["finished"] == "True"})
