"""The command `npu-llm info`: a model's facts, its memory needs, and the pipeline that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer
from npu_llm.cli.arguments import add_checkpoint, check_model, file_options

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and prints the model's description; returns the exit code."""
    parser = CommandParser(
        prog="npu-llm info",
        description="Shows a model's facts, the memory it needs in each precision, and whether "
        "that is available. Reads no weights.",
        check=check_model,
    )
    add_checkpoint(parser, exported=True)
    parser.add_argument(
        "--trace",
        action="store_true",
        help="trace the model, which takes seconds, to find out whether it runs as kernels, and "
        "which call prevents that (default: use the compile cache)",
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="show an estimate of the model's speed on an NPU, such as lunar-lake, by the NPU's "
        "compiler; takes minutes the first time",
    )
    add_json(parser)
    options = parser.parse_args(arguments)
    # Late imports: help and errors of usage need none of them.
    from npu_llm.cli.showing.model_description import describe

    said = describe(
        options.model, trace=options.trace, target=options.target, **file_options(options)
    )
    give_answer(options.json, said, lambda: _print(said))
    return 0


def _print(said: dict[str, Any]) -> None:
    from npu_llm.cli.showing.description_table import print_description  # late: imports rich

    print_description(said)
