"""`npu-llm embed`: vectors of texts, one a line."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from npu_command.answers import add_json
from npu_command.help.command_parser import CommandParser
from npu_llm.choices import POOLINGS
from npu_llm.cli.arguments import check_model, positive
from npu_llm.cli.display import Display
from npu_llm.cli.tasks.starting import add_task_model, start_task
from npu_llm.cli.tasks.text_lines import check_lines, give_lines, read_lines

__all__ = ["main"]


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
    from npu_llm.cli.session import be_quiet

    be_quiet()
    from npu_llm.tasks.models import NPUModelForFeatureExtraction

    display = Display()
    model = start_task(NPUModelForFeatureExtraction, options, display)
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
