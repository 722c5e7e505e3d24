"""`npu-compiler check PATH`: says whether a saved or exported model suits an NPU."""

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
        if given.output is not None and given.half:
            parser.error("--output writes no page of --half: leave one of them out.")
        if not given.half and (given.estimate or not given.path.is_file()):
            from npu_compiler.exported.manifest import read_manifest  # numpy: help needs none

            read_manifest(given.path)

    parser = CommandParser(
        prog="npu-compiler check",
        description="Say whether an exported model is what an NPU accepts; no NPU is needed.",
        check=check,
    )
    parser.add_argument(
        "path", type=Path,
        help="a folder that npu_compiler.export made, or a file that torch.export.save wrote; "
        "--half takes files alone, --estimate folders",
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
    parser.add_argument("-o", "--output", type=Path, help="write it as an HTML page, too")
    given = parser.parse_args(arguments)
    if given.half:
        return _half(given.path, given.json)
    if given.estimate:
        return _estimate(given.path, given.generation, given.output, given.json)
    return _rules(given.path, given.generation, given.output, given.json)


def _rules(path: Path, generation: str, output: Path | None, answer: Path | None) -> int:
    # OpenVINO and, for a file, dynamo: help needs neither.
    from npu_compiler.readiness import check_file, check_folder, readiness_page

    ask = check_file if path.is_file() else check_folder
    readiness = ask(path, generation=generation)
    if output is not None:
        title = f"{readiness.name} on NPU {generation}"
        _write(output, readiness_page(title, [readiness]))
    give_answer(answer, readiness.as_dict(), lambda: print(readiness))
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
        _write(output, bound.to_html())
    give_answer(answer, bound.as_dict(), lambda: print(bound))
    return 0


def _write(output: Path, page: str) -> None:
    from npu_compiler.explanations.show import write_page

    write_page(output, page)
