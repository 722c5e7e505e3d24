"""`npu-llm info`: what a model is, how much memory it needs, and what would run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer
from npu_llm.checkpoint.source import DEFAULT_WEIGHTS
from npu_llm.cli.arguments import add_files, check_model, file_options

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and prints what is known about the model; returns the exit code."""
    parser = CommandParser(
        prog="npu-llm info",
        description="Shows what a model is, how much memory it needs in each precision, and "
        "whether that is available. No weights are read, and nothing is traced.",
        check=check_model,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="GGUF file, checkpoint folder, exported folder, or name on the hub; by default the "
        f"weights of the installed {DEFAULT_WEIGHTS}",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="trace the model, which takes some seconds, to say whether it runs as kernels, and "
        "which call keeps it from that (default: what the compile cache knows)",
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="build the model's programs and show its speed on an NPU, such as lunar-lake, by the "
        "NPU's compiler, which takes minutes the first time; an estimate, not a measurement",
    )
    add_files(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    # Late: help and wrong options need neither.
    from npu_llm.cli.showing.model_description import describe

    said = describe(
        options.model, trace=options.trace, target=options.target, **file_options(options)
    )
    give_answer(options.json, said, lambda: _print(said))
    return 0


def _print(said: dict[str, Any]) -> None:
    from npu_llm.cli.showing.description_table import print_description  # rich: JSON needs none

    print_description(said)
