"""`npu-runtime collect-env`: prints the facts for a bug report."""

import json
from collections.abc import Sequence

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Prints everything as text, or only our part as JSON with --json or --share; returns 0."""
    parser = CommandParser(
        prog="npu-runtime collect-env",
        description="Print data for a problem report: torch's collect_env, the devices, versions, "
        "environment variables and the doctor's findings.",
    )
    add_json(parser)
    parser.add_argument(
        "--share",
        action="store_true",
        help="print our part as JSON without names of the user and the machine, for publication",
    )
    given = parser.parse_args(arguments)
    from npu_runtime import collect_env  # imports torch, which --help does not need

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
