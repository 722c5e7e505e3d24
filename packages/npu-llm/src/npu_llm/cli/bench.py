"""The command `npu-llm bench`: measures a model's speed, memory and power."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npu_command.charts import check_matplotlib
from npu_command.command_parser import CommandParser
from npu_command.output import add_json, check_writable, give_answer, import_notice
from npu_llm.checkpoint.source import DEFAULT_WEIGHTS
from npu_llm.cli.arguments import add_model, add_server, check_model, positive
from npu_llm.errors import OptionError

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments, measures, and prints a table; returns the exit code."""
    parser = CommandParser(
        prog="npu-llm bench",
        description="Measures time to first token (TTFT), throughput, memory and, if available, "
        "power. The answers have full length: end tokens do not stop them. The table goes to "
        "standard output.",
        check=_check,
    )
    add_model(parser)
    parser.add_argument("-p", "--prompt", metavar="N,N", type=_lengths, default=[32, 1024],
                        help="prompt lengths in tokens (default: 32,1024)")  # fmt: skip
    parser.add_argument("-n", "--new", metavar="N,N", type=_lengths, default=[128],
                        help="answer lengths in tokens (default: 128)")  # fmt: skip
    parser.add_argument("--batch", metavar="N,N", type=_lengths, default=[1],
                        help="batch sizes (default: 1)")  # fmt: skip
    parser.add_argument("--repeats", metavar="N", type=positive, default=3,
                        help="answers of each size; the best counts (default: 3)")  # fmt: skip
    parser.add_argument("--warm-up", metavar="N", type=_count, default=1,
                        help="answers before them, not measured (default: 1)")  # fmt: skip
    add_json(parser)
    parser.add_argument(
        "--plot", metavar="FILE.svg", type=Path, help="draw the figures to FILE.svg"
    )
    add_server(parser, "measure a running server at URL")
    parser.add_argument("--clients", metavar="N", type=positive, default=8,
                        help="with --server: concurrent clients (default: 8)")  # fmt: skip
    parser.add_argument("--requests", metavar="N", type=positive, default=200,
                        help="with --server: number of requests (default: 200)")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.server is not None:
        return _measure_server(options)
    if options.plot is not None:
        check_matplotlib("npu-llm", OptionError)
    return _run(options)


def _check(options: argparse.Namespace) -> None:
    if options.plot is not None:
        check_writable(options.plot)
    if options.server is not None and options.plot is not None:
        raise OptionError(
            f"`--plot` must be used without --server, got {options.plot}. Pass --json for the "
            "percentiles.",
            code="remote-option",
        )
    check_model(options)


def _write(file: Path, text: str) -> None:
    """Writes a result.

    Raises:
        OptionError: [output-file] if the file cannot be written.
    """
    try:
        file.write_text(text)
    except OSError as failure:
        raise OptionError(
            f"`{file}` must be writable, got {failure.strerror}. Name another file.",
            code="output-file",
        ) from failure


def _measure_server(options: argparse.Namespace) -> int:
    from npu_llm.cli.serving.remote_bench import as_json, bench_server, print_report

    report = bench_server(options)
    give_answer(options.json, as_json(report), lambda: print_report(report))
    return 0


def _run(options: argparse.Namespace) -> int:
    # Late imports: help and errors of usage need none of them.
    from npu_llm.cli.terminal import Display

    display = Display()
    with import_notice():
        from npu_llm.bench import benchmark, find_meter, plot_records
        from npu_llm.cli.session import start
    meter = find_meter()
    model = start(options, display, needs_tokenizer=False)
    with display.counting("measuring", "answers") as counter:
        records = benchmark(
            model,
            prompt_lengths=options.prompt,
            new_tokens=options.new,
            batch_sizes=options.batch,
            repeats=options.repeats,
            warm_up=options.warm_up,
            meter=meter,
            on_record=lambda record: display.line(
                f"measured: prompt {record.prompt_tokens:,}, answer {record.new_tokens:,}, "
                f"batch {record.batch_size}"
            ),
            on_answer=counter,
        )
    display.line(f"power: measured on {meter.name}" if meter.is_readable
                 else f"power: cannot be read, {meter.reason}")  # fmt: skip
    about = {
        "model": DEFAULT_WEIGHTS if options.model is None else Path(options.model).name,
        "precision": model.precision.name,
        "pipeline": model.pipeline,
        "device": model.report.device,
        "power": meter.name or f"cannot be read: {meter.reason}",
    }
    rows = [asdict(record) for record in records]
    give_answer(options.json, {**about, "records": rows}, lambda: _print(records))
    if options.plot is not None:
        title = f"{about['model']}, {about['precision']}, on {about['device']}"
        _write(options.plot, plot_records(records, title=title))
    return 0


def _print(records: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(pad_edge=False)
    columns: dict[str, Callable[[Any], str]] = {
        "prompt": lambda record: f"{record.prompt_tokens:,}",
        "answer": lambda record: f"{record.new_tokens:,}",
        "batch": lambda record: f"{record.batch_size}",
        "TTFT ms": lambda record: f"{record.first_token_s * 1e3:,.1f}",
        "prefill tokens/s": lambda record: f"{record.prefill_tokens_per_s:,.1f}",
        "decode tokens/s": lambda record: _number(record.decode_tokens_per_s),
        "peak MB": lambda record: f"{record.peak_memory_bytes / 1e6:,.0f}",
        "anonymous MB": lambda record: f"{record.anonymous_memory_bytes / 1e6:,.0f}",
        "power W": lambda record: _number(record.power_w),
    }
    for name in columns:
        table.add_column(name, justify="right")
    for record in records:
        table.add_row(*(show(record) for show in columns.values()))
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 120)
    console.print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _lengths(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value
