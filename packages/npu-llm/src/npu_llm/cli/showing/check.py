"""The command `npu-llm check`: checks whether an NPU accepts a model's static programs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from npu_command.command_parser import CommandParser, offer
from npu_command.output import add_json, give_answer
from npu_compiler.commands.target import add_target
from npu_llm.checkpoint.source import find_installed_weights
from npu_llm.choices import PRECISION_NAMES
from npu_llm.cli.arguments import add_checkpoint, check_model, file_options
from npu_llm.progress import TARGET_STAGES

if TYPE_CHECKING:
    from npu_compiler.readiness import Readiness
    from npu_llm.models.readiness import GenerationEstimate

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Prints the check of each program; returns 1 if one is refused."""

    def check(given: argparse.Namespace) -> None:
        if given.output is not None and given.estimate:
            parser.error("--output must be omitted with --estimate")
        check_model(given)

    parser = CommandParser(
        prog="npu-llm check",
        description="Compiles the static pipeline's programs for one token and for a prompt for an "
        "NPU, or compares them with rules without a compiler. No NPU is needed. `npu-compiler "
        "target install` installs the compiler.",
        check=check,
    )
    add_checkpoint(parser)
    dtype = parser.add_argument("--dtype", help="precision of weights and arithmetic")
    offer(dtype, PRECISION_NAMES)
    add_target(parser)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--rules", action="store_true",
        help="only compare with the rules; compiling takes minutes the first time",
    )  # fmt: skip
    kinds.add_argument(
        "--estimate", action="store_true",
        help="show the compiler's estimate of tokens/s and time to first token, and bounds from "
        "published figures; not a measurement",
    )  # fmt: skip
    add_json(parser)
    parser.add_argument("-o", "--output", type=Path, help="also write an HTML page")
    given = parser.parse_args(arguments)
    # Late imports: help and errors of usage need neither torch nor OpenVINO.
    from npu_llm.cli.terminal import Display
    from npu_llm.models.load_options import LoadOptions
    from npu_llm.models.readiness import check_static_programs, estimate_static_programs

    model, target = given.model or find_installed_weights().path, given.target
    estimate: GenerationEstimate | None = None
    found: tuple[Readiness, ...] = ()
    with Display().progress(TARGET_STAGES) as listener:
        options = LoadOptions(dtype=given.dtype, on_progress=listener, **file_options(given))
        if given.estimate:
            estimate = estimate_static_programs(model, options, target=target)
        else:
            found = check_static_programs(model, options, target=target, rules_only=given.rules)
    if estimate is not None:
        give_answer(given.json, estimate.as_dict(), lambda: print(estimate))
        return 0
    if given.output is not None:
        from npu_compiler.explanations.show import write_page
        from npu_compiler.readiness import readiness_page

        title = f"{Path(model).name} on {found[0].target}"
        write_page(given.output, readiness_page(title, found))
    give_answer(
        given.json,
        [one.as_dict() for one in found],
        lambda: print("\n\n".join(map(str, found))),
    )
    return 0 if all(one.is_ready for one in found) else 1
