"""`npu-llm eval`: how well a model does, by perplexity or its task's measure."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npu_command.answers import add_json, give_answer
from npu_command.help.command_parser import CommandParser
from npu_command.import_notice import import_notice
from npu_llm.choices import parse_dtype
from npu_llm.cli.arguments import add_model, check_model, positive
from npu_llm.cli.tasks.evaluating import (
    add_data,
    is_other_task,
    measure_by_data,
    print_task_results,
)
from npu_llm.errors import OptionError

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments, measures, and prints a table.

    Returns:
        The exit code: 1 if --max-loss was given and the loss is above it, else 0.
    """
    parser = CommandParser(
        prog="npu-llm eval",
        description="Measures perplexity on a text: how well the model predicts it; lower is "
        "better. With --data, measures a model of another task by samples: error rates of words, "
        "chrF and BLEU, accuracy, F1 of answers, or cosines of vectors. The table goes to standard "
        "output.",
        check=_check,
    )
    add_model(parser)
    parser.add_argument(
        "--text",
        metavar="FILE",
        type=Path,
        help="a text in UTF-8 (default: one that comes with npu-llm)",
    )
    add_data(parser)
    parser.add_argument(
        "--compare",
        metavar="DTYPE,DTYPE",
        default="float32",
        help="measure these precisions of the same model first, and show the loss relative to the "
        'first of them; "dense" for what is measured without its sparse attention; "none" to '
        "compare with nothing (default: float32)",
    )
    parser.add_argument(
        "--original", metavar="PATH", help="the model to compare with, for an exported folder"
    )
    parser.add_argument(
        "--window", metavar="N", type=positive,
        help="tokens read at once (default: 256; with --sparse-attention twice as many as that, of "
        "which the second half is scored)",
    )  # fmt: skip
    parser.add_argument(
        "--stride", metavar="N", type=positive,
        help="tokens from one window to the next (default: the window)",
    )  # fmt: skip
    parser.add_argument(
        "--max-loss",
        metavar="PERCENT",
        type=float,
        help="exit with code 1 if the loss is larger; with --data, in points of 100",
    )
    add_json(parser)
    options = parser.parse_args(arguments)
    compared = _compared(options)
    return _by_text(options, compared) if options.data is None else _by_data(options, compared)


def _compared(options: argparse.Namespace) -> list[str]:
    """Returns the precisions to compare with, and "dense"."""
    return [] if options.compare == "none" else options.compare.split(",")


def _check(options: argparse.Namespace) -> None:
    compared = _compared(options)
    for name in compared:
        if name != "dense":
            parse_dtype(name)
        elif options.sparse_attention is None:
            raise OptionError(
                "--compare dense: must come with --sparse-attention; got none. Add it, or name a "
                "precision.",
                code="eval-compare",
            )
    if options.max_loss is not None and not compared:
        raise OptionError(
            "--max-loss: must come with a precision to compare with; got --compare none. Omit "
            "one of them.",
            code="eval-compare",
        )
    check_model(options)


def _by_data(options: argparse.Namespace, compared: Sequence[str]) -> int:
    results = measure_by_data(options, compared)
    rows: list[dict[str, Any]] = [
        {"precision": one.precision, "task": one.task, "samples": one.samples, **one.figures}
        | {"loss": one.loss(results[0])}
        for one in results
    ]
    give_answer(
        options.json,
        rows,
        lambda: print_task_results(results, options.data, has_exact=bool(compared)),
    )
    return _end(options, points=rows[-1]["loss"])


def _by_text(options: argparse.Namespace, compared: Sequence[str]) -> int:
    if is_other_task(options.model):
        raise OptionError(
            f"{options.model}: a model that does not continue text is measured by samples of its "
            "task; got none. Pass --data FILE; the guide on measuring has the form of a sample.",
            code="eval-data",
        )
    # Heavy: a mistyped command should not wait for these.
    from npu_llm.evaluation import default_text, read_text

    text = default_text() if options.text is None else read_text(options.text)
    results = []
    for name in compared:
        path = options.model if options.original is None else options.original
        changed: dict[str, Any] = {"model": path, "sparse_attention": None}
        if name != "dense":
            changed |= {"dtype": name, "kv_cache": None}
        other = argparse.Namespace(**{**vars(options), **changed})
        results.append(_measure(other, text, scored_from=options.sparse_attention))
    results.append(_measure(options, text, scored_from=options.sparse_attention))
    rows = [asdict(one) | {"loss": one.loss(results[0])} for one in results]
    give_answer(options.json, rows, lambda: _print(results, has_exact=bool(compared)))
    return _end(options, points=100 * rows[-1]["loss"])


def _end(options: argparse.Namespace, *, points: float) -> int:
    """Returns the exit code by the loss in points."""
    return int(options.max_loss is not None and not points <= options.max_loss)


def _measure(options: argparse.Namespace, text: str, *, scored_from: int | None) -> Any:
    from npu_llm.cli.display import Display

    display = Display()
    with import_notice():
        from npu_llm.cli.session import start
        from npu_llm.evaluation import evaluate
    model = start(options, display)
    window = options.window
    if window is None and scored_from is not None:
        window = min(2 * scored_from, model.context_length or 2 * scored_from)
    with display.counting(f"measuring {model.precision.name}", "tokens") as counter:
        result = evaluate(
            model,
            text,
            window=window or 256,
            stride=options.stride,
            scored_from=scored_from,
            on_tokens=counter,
        )
    del model
    gc.collect()  # the next one needs the memory
    return result


def _print(results: Sequence[Any], *, has_exact: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    first = results[0]
    table = Table(pad_edge=False)
    table.add_column("precision")
    table.add_column("perplexity", justify="right")
    if has_exact:
        table.add_column("loss", justify="right")
    for number, one in enumerate(results):
        name = one.precision + (f", kv-cache {one.kv_cache}" if one.kv_cache else "")
        name += f", sparse attention {one.sparse_attention}" if one.sparse_attention else ""
        cells = [name, f"{one.perplexity:.3f}"]
        if has_exact:
            cells.append(f"{one.loss(first):+.2%}" if number else "")
        table.add_row(*cells)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{first.tokens:,} tokens in windows of {first.window:,}, stride {first.stride:,}"
        + (f", scored after {first.scored_from:,}" if first.scored_from else "")
    )
    console.print(table)
