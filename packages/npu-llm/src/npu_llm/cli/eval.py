"""`npu-llm eval`: a model's perplexity on a text, compared with other precisions of it."""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npu_llm.cli.arguments import add_model, positive
from npu_llm.cli.bench import check_writable, write_output
from npu_llm.errors import OptionError

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments, measures, and prints a table.

    Returns:
        The exit code: 1 if --max-loss was given and the loss is above it, else 0.
    """
    parser = argparse.ArgumentParser(
        prog="npu-llm eval",
        description="Measures perplexity on a text: how well the model predicts it; lower is "
        "better. The table goes to standard output.",
    )
    add_model(parser)
    parser.add_argument(
        "--text",
        metavar="FILE",
        type=Path,
        help="a text in UTF-8 (default: one that comes with npu-llm)",
    )
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
        "--max-loss", metavar="PERCENT", type=float, help="exit with code 1 if the loss is larger"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures to FILE")
    options = parser.parse_args(arguments)
    check_writable(options.json)
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    from npu_llm.precision import parse_precision

    compared = [] if options.compare == "none" else options.compare.split(",")
    for name in compared:
        if name != "dense":
            parse_precision(name)
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
    last = results[-1]
    _print(results, has_exact=bool(compared))
    loss = last.loss(results[0])
    if options.json is not None:
        rows = [asdict(one) | {"loss": one.loss(results[0])} for one in results]
        write_output(options.json, json.dumps(rows, indent=2) + "\n")
    return int(options.max_loss is not None and not loss * 100 <= options.max_loss)


def _measure(options: argparse.Namespace, text: str, *, scored_from: int | None) -> Any:
    from npu_llm.cli.display import Display
    from npu_llm.cli.session import start
    from npu_llm.evaluation import evaluate

    model = start(options, Display())
    window = options.window
    if window is None and scored_from is not None:
        window = min(2 * scored_from, model.context_length or 2 * scored_from)
    result = evaluate(
        model, text, window=window or 256, stride=options.stride, scored_from=scored_from
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
