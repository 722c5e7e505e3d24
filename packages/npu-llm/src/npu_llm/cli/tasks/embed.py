"""`npu-llm embed`: writes the vectors of texts, one a line."""

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
    """Parses the arguments and writes the vectors."""
    parser = CommandParser(
        prog="npu-llm embed",
        description="Writes the vector of each line of a text: numbers on a line, or JSON.",
        check=_check,
    )
    parser.add_argument("file", metavar="FILE", help="texts, one a line; - for standard input")
    add_task_model(parser, default="float32")
    parser.add_argument(
        "--pooling",
        metavar="HOW",
        help=f"{', '.join(POOLINGS)} (default: what the checkpoint records, or mean)",
    )
    parser.add_argument("--batch-size", metavar="N", type=positive, default=64, help="default: 64")
    add_json(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="where to write; .npy for numpy's format"
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
        f"{len(texts):,} texts, {vectors.shape[1]} numbers each, {len(texts) / seconds:,.0f} a "
        "second"
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
    """Returns the lines of a file that are not empty.

    Args:
        name: the file, or "-" for standard input.

    Raises:
        OptionError: [text-lines] for a file that cannot be read or has no text, [text-encoding]
            for bytes that are not UTF-8.
    """
    subject = "standard input" if name == "-" else name
    try:
        text = read_text(subject, sys.stdin.read if name == "-" else Path(name).read_text)
    except OSError as failure:
        raise OptionError(
            f"`{subject}` must be a file of texts, one a line, got {failure.strerror}. Name "
            "another, or - for standard input.",
            code="text-lines",
        ) from failure
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise OptionError(
            f"`{subject}` must have texts, one a line, got none. Write some.", code="text-lines"
        )
    return lines


def check_lines(name: str) -> None:
    """Raises what read_lines does for a file that is not there.

    What is there may be a pipe, which is read once.
    """
    if name != "-" and not Path(name).exists():
        read_lines(name)


def give_lines(
    options: argparse.Namespace, lines: Sequence[str], records: Sequence[Mapping[str, Any]]
) -> None:
    """Writes what was found for each text: a line, or a line of JSON with --json.

    Args:
        options: with json and output; `--json -o FILE` means `--json=FILE`.
        lines: for people.
        records: the same, for programs.

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
