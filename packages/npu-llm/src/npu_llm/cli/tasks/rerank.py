"""The command `npu-llm rerank`: orders documents by their relevance to a query."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_command.output import add_json
from npu_llm.cli.arguments import check_model, positive
from npu_llm.cli.tasks.embed import check_lines, give_lines, read_lines
from npu_llm.cli.tasks.starting import add_task_model, start_task
from npu_llm.cli.terminal import Display

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and prints the documents, best first; returns the exit code."""
    parser = CommandParser(
        prog="npu-llm rerank",
        description="Orders documents, one per line, by their relevance to a query.",
        check=_check,
    )
    parser.add_argument("query", metavar="QUERY", help="the query")
    parser.add_argument(
        "file", metavar="FILE", help="documents, one per line; - for standard input"
    )
    add_task_model(parser, default="float32")
    parser.add_argument(
        "--top-k", metavar="N", type=positive, help="number of documents to print (default: all)"
    )
    add_json(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="output file")
    options = parser.parse_args(arguments)
    documents = read_lines(options.file)
    model = start_task("NPUModelForSequenceClassification", options, Display())
    ranked = model.rerank(options.query, documents, top_k=options.top_k)
    lines = [f"{one.score:.4f}  {one.document}" for one in ranked]
    give_lines(options, lines, [dataclasses.asdict(one) for one in ranked])
    return 0


def _check(options: argparse.Namespace) -> None:
    check_lines(options.file)
    check_model(options)
