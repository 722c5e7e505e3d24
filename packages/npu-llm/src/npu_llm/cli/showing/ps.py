"""The command `npu-llm ps`: the models that a running server has loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, aligned, give_answer
from npu_llm.cli.arguments import LOCAL_SERVER, add_api_key

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and lists the models; returns the exit code."""
    parser = CommandParser(
        prog="npu-llm ps",
        description="Lists the models that a running server has loaded.",
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        default=LOCAL_SERVER,
        help=f"address of the server (default: {LOCAL_SERVER})",
    )
    add_api_key(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    from npu_llm.serving.client import Connection  # late: help needs none

    found = Connection(options.server, key=options.api_key).loaded()
    models = [{"name": one["name"], "context_length": one["context_length"]} for one in found]
    give_answer(options.json, models, lambda: _print(models))
    return 0


def _print(models: Sequence[Mapping[str, Any]]) -> None:
    rows = [(one["name"], f"{one['context_length']:,} tokens") for one in models]
    print("\n".join(aligned([("NAME", "CONTEXT"), *rows])))
