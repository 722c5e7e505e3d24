"""`npu-llm check`: whether an NPU would take a model's static programs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from npu_command.answers import add_json, give_answer
from npu_command.help.command_parser import CommandParser
from npu_command.help.completion import offer
from npu_llm.checkpoint.source import find_installed_weights
from npu_llm.choices import PRECISION_NAMES
from npu_llm.cli.arguments import add_checkpoint, check_model

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Prints what was found of each program; returns 1 when a rule refuses one."""

    def check(given: argparse.Namespace) -> None:
        if given.output is not None and given.estimate:
            parser.error("--output writes no page of --estimate: leave one of them out.")
        check_model(given)

    parser = CommandParser(
        prog="npu-llm check",
        description="Compares the programs for one token and for a prompt, as the static pipeline "
        "builds them, with rules that were read from the source of the NPU's compiler. No NPU is "
        "needed.",
        check=check,
    )
    add_checkpoint(parser)
    dtype = parser.add_argument("--dtype", help="precision of weights and arithmetic")
    offer(dtype, PRECISION_NAMES)
    parser.add_argument(
        "--generation", default="4000", help="3720: Meteor Lake; 4000: Lunar Lake (default)"
    )
    parser.add_argument(
        "--estimate", action="store_true",
        help="give bounds of tokens per second and of the time to the first token instead, from "
        "published figures; not a measurement",
    )  # fmt: skip
    add_json(parser)
    parser.add_argument("-o", "--output", type=Path, help="write it as an HTML page, too")
    given = parser.parse_args(arguments)
    # Late: these import torch and OpenVINO, which help and wrong options do not need.
    from npu_llm.entries.load_options import LoadOptions
    from npu_llm.entries.readiness import bound_static_programs, check_static_programs

    model, options = given.model or find_installed_weights().path, LoadOptions(dtype=given.dtype)
    if given.estimate:
        bound = bound_static_programs(model, options, generation=given.generation)
        give_answer(given.json, bound.as_dict(), lambda: print(bound))
        return 0
    found = check_static_programs(model, options, generation=given.generation)
    if given.output is not None:
        from npu_compiler.explanations.show import write_page
        from npu_compiler.readiness import readiness_page

        title = f"{Path(model).name} on NPU {given.generation}"
        write_page(given.output, readiness_page(title, found))
    give_answer(
        given.json,
        [one.as_dict() for one in found],
        lambda: print("\n\n".join(map(str, found))),
    )
    return 0 if all(one.is_ready for one in found) else 1
