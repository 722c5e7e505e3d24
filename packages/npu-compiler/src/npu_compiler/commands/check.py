"""`npu-compiler check FOLDER`: says whether an exported model suits an NPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from npu_command.answers import add_json, give_answer
from npu_command.help.command_parser import CommandParser

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Prints the findings; returns 1 when one is a refusal."""

    def check(given: argparse.Namespace) -> None:
        if given.output is not None and not given.estimate:
            parser.error("--output is of --estimate: add it.")
        if not given.half:
            from npu_compiler.exported.manifest import read_manifest  # numpy: help needs none

            read_manifest(given.folder)

    parser = CommandParser(
        prog="npu-compiler check",
        description="Say whether an exported model is what an NPU accepts; no NPU is needed.",
        check=check,
    )
    parser.add_argument(
        "folder", type=Path,
        help="that npu_compiler.export made; with --half a file that torch.export.save wrote",
    )  # fmt: skip
    parser.add_argument(
        "--generation", default="4000", help="3720: Meteor Lake; 4000: Lunar Lake (default)"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--half", action="store_true",
        help="say what float16 does to each call, and what must stay in float32",
    )  # fmt: skip
    kinds.add_argument(
        "--estimate", action="store_true",
        help="give a lower bound of a run's time from published figures, not a measurement",
    )  # fmt: skip
    add_json(parser)
    parser.add_argument(
        "-o", "--output", type=Path, help="with --estimate: write it as an HTML page, too"
    )
    given = parser.parse_args(arguments)
    if given.half:
        return _half(given.folder, given.json)
    if given.estimate:
        return _estimate(given.folder, given.generation, given.output, given.json)
    from npu_compiler.readiness import check_folder  # OpenVINO: help needs none

    readiness = check_folder(given.folder, generation=given.generation)
    give_answer(given.json, readiness.as_dict(), lambda: print(readiness))
    return 0 if readiness.is_ready else 1


def _half(path: Path, answer: Path | None) -> int:
    from npu_compiler.half_precision import check_half_file  # dynamo: help needs none

    found = check_half_file(path)
    give_answer(answer, found.as_dict(), lambda: print(found))
    return 0 if found.is_harmless and not found.keep_float32 else 1


def _estimate(folder: Path, generation: str, output: Path | None, answer: Path | None) -> int:
    from npu_compiler.time_bound import bound_folder  # OpenVINO: help needs none

    bound = bound_folder(folder, generation=generation)
    if output is not None:
        from npu_compiler.explanations.show import write_page

        write_page(output, bound.to_html())
    give_answer(answer, bound.as_dict(), lambda: print(bound))
    return 0
