"""The command `npu-llm bench --server`: measures a running server under load."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from npu_llm.cli.terminal import Display
from npu_llm.errors import OptionError
from npu_llm.serving.client import Connection, LoadReport, Percentiles, Work, measure

__all__ = ["as_json", "bench_server", "print_report"]


def bench_server(options: argparse.Namespace) -> LoadReport:
    """Measures the server in the options.

    Raises:
        NpuError: if the server cannot be reached or answers nothing; OptionError [length-range]
            unless each range is one number, or a minimum and a maximum.
    """
    work = Work(
        clients=options.clients,
        requests=options.requests,
        prompt_words=_range("--prompt", options.prompt),
        new_tokens=_range("--new", options.new),
        model=options.model,
    )
    display = Display()
    connection = Connection(options.server, key=options.api_key)
    tenth = max(work.requests // 10, 1)

    def tell(done: int) -> None:
        if done % tenth == 0:
            display.line(f"answered: {done:,} of {work.requests:,}")

    report = measure(connection, work, on_answer=tell)
    for text, count in report.refusals.items():
        display.line(f"rejected {count:,} times: {text}")
    return report


def as_json(report: LoadReport) -> dict[str, Any]:
    """Returns the figures as JSON values."""
    rates = {"tokens_per_s": report.tokens_per_s, "requests_per_s": report.requests_per_s}
    return {**asdict(report), **rates}


def print_report(report: LoadReport) -> None:
    """Prints the figures as a table."""
    table = Table(pad_edge=False)
    for name in ("", "median", "95 %", "99 %"):
        table.add_column(name, justify="right" if name else "left")
    rows = {
        "time to first token, ms": report.time_to_first_token,
        "time per token, ms": report.time_per_token,
        "time between pieces, ms": report.time_between_pieces,
        "whole answer, ms": report.whole,
    }
    for name, spread in rows.items():
        table.add_row(name, *_milliseconds(spread))
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 120)
    console.print(table)
    reasons = ", ".join(f"{count:,} {name}" for name, count in report.finish_reasons.items())
    console.print(
        f"{report.answers:,} answers in {report.seconds:,.1f} s: {report.tokens_per_s:,.1f} "
        f"tokens/s, {report.requests_per_s:,.2f} requests/s; {report.prompt_tokens:,} tokens of "
        f"prompts, {report.cached_tokens:,} of them cached; {sum(report.refusals.values()):,} "
        f"rejected, {report.empty:,} empty; finish reasons: {reasons or 'none'}"
    )


def _milliseconds(spread: Percentiles | None) -> list[str]:
    if spread is None:
        return ["-"] * 3
    return [f"{time * 1e3:,.1f}" for time in (spread.p50_s, spread.p95_s, spread.p99_s)]


def _range(name: str, lengths: list[int]) -> tuple[int, int]:
    if len(lengths) > 2 or lengths[0] > lengths[-1]:
        raise OptionError(
            f"`{name}` must be one number, or a minimum and a maximum, got "
            f"{','.join(map(str, lengths))}. Pass 32,800, for example.",
            code="length-range",
        )
    return lengths[0], lengths[-1]
