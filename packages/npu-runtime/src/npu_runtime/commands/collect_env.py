"""`npu-runtime collect-env`: what a report about a problem should hold."""

import json
from collections.abc import Sequence

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Prints it all, as text or, with --json or --share, ours alone as JSON. Returns 0."""
    parser = CommandParser(
        prog="npu-runtime collect-env",
        description="Print what a report about a problem should hold: torch's own collection, the "
        "devices, versions, environment variables and what the doctor found.",
    )
    add_json(parser)
    parser.add_argument(
        "--share",
        action="store_true",
        help="print ours as JSON without names of the user and the machine, for anybody to read",
    )
    given = parser.parse_args(arguments)
    from npu_runtime import collect_env  # imports torch, which help needs not

    collected = collect_env.collect()
    if given.share:
        collected = collect_env.shareable(collected)
    give_answer(
        given.json,
        collected,
        lambda: print(
            json.dumps(collected, indent=2) if given.share else collect_env.as_text(collected)
        ),
    )
    return 0
