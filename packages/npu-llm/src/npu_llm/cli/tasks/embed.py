"""The command `npu-llm embed`: writes the embeddings of texts, one per line."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_command.command_parser import CommandParser
from npu_command.output import OUTPUT, add_json, give_answer
from npu_llm.choices import POOLINGS
from npu_llm.cli.arguments import check_model, positive
from npu_llm.cli.tasks.starting import add_task_model, start_task
from npu_llm.cli.terminal import Display
from npu_llm.errors import OptionError, read_text

__all__ = ["check_lines", "give_lines", "main", "read_lines"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and writes the embeddings; returns the exit code."""
    parser = CommandParser(
        prog="npu-llm embed",
        description="Writes the embedding of each line of a text, as numbers on a line or as JSON.",
        check=_check,
    )
    parser.add_argument("file", metavar="FILE", help="texts, one per line; - for standard input")
    add_task_model(parser, default="float32")
    parser.add_argument(
        "--pooling",
        metavar="HOW",
        help=f"{', '.join(POOLINGS)} (default: the checkpoint's, or mean)",
    )
    parser.add_argument(
        "--batch-size", metavar="N", type=positive, default=64, help="texts per batch (default: 64)"
    )
    add_json(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="output file; .npy for numpy's format"
    )
    options = parser.parse_args(arguments)
    texts = read_lines(options.file)
    display = Display()
    model = start_task("NPUModelForFeatureExtraction", options, display)
    model.encode(texts[:1], pooling=options.pooling)  # reads the tokenizer
    began = time.perf_counter()
    vectors = model.encode(texts, pooling=options.pooling, batch_size=options.batch_size)
    seconds = time.perf_counter() - began
    display.line(
        f"{len(texts):,} texts, {vectors.shape[1]} numbers each, {len(texts) / seconds:,.0f} "
        "texts/s"
    )
    if options.output is not None and options.output.suffix == ".npy":
        import numpy as np

        np.save(options.output, vectors.numpy())
        return 0
    rows = [[round(number, 7) for number in row] for row in vectors.tolist()]
    lines = [" ".join(map(str, row)) for row in rows]
    records = [{"text": text, "embedding": row} for text, row in zip(texts, rows, strict=True)]
    give_lines(options, lines, records)
    return 0


def _check(options: argparse.Namespace) -> None:
    check_lines(options.file)
    check_model(options)


def read_lines(name: str) -> list[str]:
    """Returns the non-empty lines of a file.

    Args:
        name: the file, or "-" for standard input.

    Raises:
        OptionError: [text-lines] if the file cannot be read or has no text, [text-encoding] if it
            is not UTF-8.
    """
    subject = "standard input" if name == "-" else name
    try:
        text = read_text(subject, sys.stdin.read if name == "-" else Path(name).read_text)
    except OSError as failure:
        raise OptionError(
            f"`{subject}` must be a file of texts, one per line, got {failure.strerror}. Name "
            "another, or - for standard input.",
            code="text-lines",
        ) from failure
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise OptionError(
            f"`{subject}` must contain texts, one per line, got none. Add some.", code="text-lines"
        )
    return lines


def check_lines(name: str) -> None:
    """Raises as read_lines does for a missing file.

    An existing one may be a pipe, which can be read only once.
    """
    if name != "-" and not Path(name).exists():
        read_lines(name)


def give_lines(
    options: argparse.Namespace, lines: Sequence[str], records: Sequence[Mapping[str, Any]]
) -> None:
    """Writes the result of each text as a line, or as a line of JSON with --json.

    Args:
        options: options with json and output; `--json -o FILE` means `--json=FILE`.
        lines: the results as text.
        records: the results for JSON.

    Raises:
        FileAccessError: [output-file] if the file of --json cannot be written.
    """
    text = "".join(f"{line}\n" for line in lines)
    place, output = options.json, options.output
    if place == OUTPUT and output is not None:
        place, output = output, None

    def show() -> None:
        if output is not None:
            output.write_text(text)
        elif place is None:
            print(text, end="")

    give_answer(place, records, show, is_lines=True)
