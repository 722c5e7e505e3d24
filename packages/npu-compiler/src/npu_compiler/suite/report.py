"""Reports of the suite: rows of CSV, a summary, and the page of results."""

from __future__ import annotations

import csv
import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from npu_compiler.suite.measurement import BOUND, Measurement
from npu_compiler.suite.table import LEFT_OUT

__all__ = [
    "HEADER",
    "Facts",
    "cells",
    "draws_section",
    "model_coverage_page",
    "read_csv",
    "row_line",
    "summary",
    "verdict",
    "write_csv",
]

# Rows and a summary for the terminal, and CSV.

HEADER = ("model", "family", "breaks", "graphs", "programs", "lowered", "error", "compile s", "")
_WIDTHS = (30, 18, 6, 6, 8, 12, 8, 9, 0)


def cells(row: Measurement) -> tuple[str, ...]:
    """Returns a measurement as the cells of one line, under HEADER."""
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
    """Returns whether a model is right and whole, with reasons if not."""
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
    """Returns cells as a line of fixed columns."""
    padded = (value.ljust(width) for value, width in zip(values, _WIDTHS, strict=True))
    return " ".join(padded).rstrip()


def summary(rows: Sequence[Measurement]) -> str:
    """Returns the numbers of right and of whole models."""
    left_out = sum(row.is_left_out for row in rows)
    rows = [row for row in rows if not row.is_left_out]
    right = sum(row.is_right for row in rows)
    whole = sum(row.is_whole for row in rows)
    bound = max((row.bound for row in rows), default=BOUND)
    return (
        f"{len(rows)} architectures: {right} right (error at most {bound:.0e}), {whole} whole (one "
        "program with every node lowered, no graph break)"
        + (f"; {left_out} draws left out, which torch refuses" if left_out else "")
    )


def write_csv(rows: Iterable[Measurement], file: Path) -> None:
    """Writes one line per measurement, with a header."""
    names = [field.name for field in dataclasses.fields(Measurement)]
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)


def read_csv(file: Path) -> list[Measurement]:
    """Reads the measurements that `write_csv` wrote."""
    with file.open(newline="", encoding="utf-8") as stream:
        return [_measurement(line) for line in csv.DictReader(stream)]


def _measurement(line: dict[str, str]) -> Measurement:
    values: dict[str, Any] = dict(line)
    for name in ("graph_breaks", "graphs", "programs", "nodes", "lowered"):
        values[name] = int(line[name])
    for name in ("error", "compile_time_s", "rounding", "bound"):
        values[name] = float(line[name])
    values["draw"] = int(line["draw"]) if line.get("draw") else None
    return Measurement(**{**values, "finished": line["finished"] == "True"})


# The page of the documentation.

_VERSIONS = ("torch", "transformers", "openvino", "npu-compiler", "npu-runtime")
_WHAT = (
    "Each model is built from transformers' configuration class with random weights, small "
    'enough to run in seconds, and compiled by `torch.compile(model, backend="npu")` as it is. '
    "*Error* is the largest difference of an element from eager float32 on the CPU, over the "
    "largest magnitude in its tensor, over all tensors that the model returns and two calls. "
    f"A model is right if that is at most {BOUND:.0e}: sums in another order stay below, and an op "
    "that computes something else does not. A model that multiplies roundings is right up to "
    "three times eager's distance from eager float64. *Compile* is the first call. None of this "
    "ran on an NPU: the driver used OpenVINO's CPU plugin, see "
    "[Verification](../verification/index.md)."
)


@dataclass(frozen=True)
class Facts:
    """Facts about the run on a page."""

    date: str  # of the run, as in ``2026-11-20``
    command: str  # the command line
    versions: str  # one line
    driver: str  # the runtime's driver, and its device
    note: str = ""  # further remarks on this run

    @classmethod
    def of_this_machine(cls, arguments: Sequence[str]) -> Facts:
        """Returns the facts of a run now on this machine."""
        device = torch.npu.get_device_properties(0)  # type: ignore[attr-defined]
        return cls(
            date=datetime.now(tz=UTC).date().isoformat(),
            command=shlex.join(["python", "-m", "npu_compiler.suite", *arguments]),
            versions=", ".join(f"{name} {version(name)}" for name in _VERSIONS),
            driver=f"{device.driver}, {device.name}",
        )


def model_coverage_page(rows: Sequence[Measurement], facts: Facts) -> str:
    """Returns the page as Markdown; deterministic."""
    right = sum(row.is_right for row in rows)
    whole = sum(row.is_whole for row in rows)
    families = dict.fromkeys(row.family for row in rows)
    verdict = (
        f"- {len(rows)} architectures: {right} right, {whole} of them whole: one program with "
        "every node, without a graph break."
    )
    lines = [
        "# Compared PyTorch models",
        "",
        f"Generated by `python -m npu_compiler.suite --page` on {facts.date}.",
        "",
        f"- Command: `{facts.command}`",
        f"- Versions: {facts.versions}",
        f"- Driver: {facts.driver}",
        *([f"- {facts.note}"] if facts.note else []),
        verdict,
        "",
        _WHAT,
        "",
    ]
    for family in families:
        members = [row for row in rows if row.family == family]
        lines += [f"## {family.capitalize()}", "", *_table(members), ""]
    lines += ["## Not whole", "", *_exceptions(rows), ""]
    left_out = [f"- {name}: {reason}." for name, reason in LEFT_OUT.items()]
    lines += ["## Tried and left out of the suite", "", *left_out, ""]
    return "\n".join(lines)


def draws_section(rows: Sequence[Measurement], facts: Facts) -> str:
    """Returns a section of that page for a run with draws of sizes; deterministic."""
    families = dict.fromkeys(row.family for row in rows)
    lines = [
        f"- Command: `{facts.command}`, {facts.date}",
        f"- Versions: {facts.versions}",
        f"- Driver: {facts.driver}",
        *([f"- {facts.note}"] if facts.note else []),
        "",
        "| Family | Models | Runs | Right | Whole | Refused by torch | Not right | Largest error |",
        "|---|---|---|---|---|---|---|---|",
        *(_counts(name, [row for row in rows if row.family == name]) for name in families),
        _counts("all", rows),
        "",
    ]
    for family in families:
        names = dict.fromkeys(row.name for row in rows if row.family == family)
        lines += [f"{family.capitalize()}: {', '.join(names)}.", ""]
    for row in rows:
        if row.is_right and row.rounding:
            lines.append(
                f"- {row.name}, draw {row.draw}, right: off by {row.error:.1e}, where eager "
                f"float32 is off by {row.rounding:.1e} from eager float64"
            )
        if not row.is_right:
            told = " ".join((row.false_alarm or row.detail or f"{row.error:.1e}").split())
            state = "refused by torch" if row.is_left_out else "not right"
            lines.append(f"- {row.name}, draw {row.draw}, {state}: `{told.replace('`', chr(39))}`")
    return "\n".join([*lines, ""])


def _counts(name: str, rows: Sequence[Measurement]) -> str:
    refused = sum(row.is_left_out for row in rows)
    right = sum(row.is_right for row in rows)
    values = (
        len({row.name for row in rows}),
        len(rows),
        right,
        sum(row.is_whole for row in rows),
        refused,
        len(rows) - right - refused,
        f"{max((row.error for row in rows if row.finished), default=0.0):.1e}",
    )
    return f"| {name} | {' | '.join(map(str, values))} |"


def _table(rows: Sequence[Measurement]) -> Iterator[str]:
    yield "| Model | Graph breaks | Graphs | Programs | Nodes lowered | Error | Compile |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        if not row.finished:
            yield f"| {row.name} | – | – | – | – | – | – |"
            continue
        share = f"{row.lowered} of {row.nodes} ({row.lowered / max(row.nodes, 1):.0%})"
        yield (
            f"| {row.name} | {row.graph_breaks} | {row.graphs} | {row.programs} | {share} | "
            f"{row.error:.1e} | {row.compile_time_s:.1f} s |"
        )


def _exceptions(rows: Sequence[Measurement]) -> list[str]:
    """Returns the models that are wrong, unfinished or not whole, with reasons."""
    found = []
    for row in rows:
        if row.is_whole:
            continue
        state = "right" if row.is_right else "wrong" if row.finished else "did not finish"
        reason = row.detail or f"{row.graphs} graphs, {row.programs} programs"
        found.append(f"- {row.name}, {state}: `{reason.replace('`', chr(39))}`")
    return found or ["None."]
