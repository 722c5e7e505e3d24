"""`npu-compiler check PATH`: checks whether an NPU accepts a saved or exported model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_command.import_hooks import start_packages
from npu_command.output import add_json, give_answer
from npu_compiler.commands.target import add_target

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Prints the findings; returns 1 if the model is not ready."""

    def check(given: argparse.Namespace) -> None:
        if given.output is not None and given.half:
            parser.error("--output must not be given with --half. Omit one of them.")
        if given.half_budget is not None and not given.half_budget >= 0:
            parser.error("--half-budget must be at least 0 seconds.")
        if given.estimate or not given.path.is_file():
            from npu_compiler.exported.manifest import read_manifest  # numpy: help needs none

            read_manifest(given.path)

    parser = CommandParser(
        prog="npu-compiler check",
        description="Compile a model for an NPU, or check it against rules without a compiler. No "
        "NPU is needed. `npu-compiler target install` installs the compiler.",
        check=check,
    )
    parser.add_argument(
        "path", type=Path,
        help="folder of npu_compiler.export, or file of torch.export.save (not with --estimate)",
    )  # fmt: skip
    add_target(parser)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--rules", action="store_true",
        help="check only against rules, which takes seconds",
    )  # fmt: skip
    kinds.add_argument(
        "--half", action="store_true",
        help="report float16's error in each call, and the calls that must stay in float32",
    )  # fmt: skip
    parser.add_argument(
        "--half-budget", type=float, metavar="SECONDS",
        help="seconds for the float16 report, 0 to skip it (default: 20; no limit with --half)",
    )  # fmt: skip
    kinds.add_argument(
        "--estimate", action="store_true",
        help="print the compiler's estimate of a run's time, and a lower bound from published "
        "figures; nothing is measured",
    )  # fmt: skip
    add_json(parser)
    parser.add_argument("-o", "--output", type=Path, help="also write an HTML page to this file")
    given = parser.parse_args(arguments)
    if given.path.is_file():
        start_packages()  # torch, which exported folders do not need
    if given.half:
        return _half(given.path, given.half_budget, given.json)
    if given.estimate:
        return _estimate(given.path, given.target, given.output, given.json)
    return _check(given)


def _check(given: argparse.Namespace) -> int:
    # OpenVINO and, for a file, dynamo: help needs neither.
    from npu_compiler.readiness import HALF_BUDGET_S, check_file, check_folder, readiness_page

    check = check_file if given.path.is_file() else check_folder
    budget_s = HALF_BUDGET_S if given.half_budget is None else given.half_budget
    readiness = check(
        given.path, target=given.target, rules_only=given.rules, half_budget_s=budget_s
    )
    if given.output is not None:
        title = f"{readiness.name} on {readiness.target}"
        _write(given.output, readiness_page(title, [readiness]))
    give_answer(given.json, readiness.as_dict(), lambda: print(readiness))
    return 0 if readiness.is_ready else 1


def _half(path: Path, budget_s: float | None, answer: Path | None) -> int:
    from npu_compiler.half_folder import check_half_folder  # torch: help needs none
    from npu_compiler.half_precision import check_half_file

    check = check_half_file if path.is_file() else check_half_folder
    found = check(path, budget_s=budget_s)
    give_answer(answer, found.as_dict(), lambda: print(found))
    return 0 if found.is_harmless and not found.keep_float32 else 1


def _estimate(folder: Path, target: str, output: Path | None, answer: Path | None) -> int:
    from npu_compiler.roofline import estimate_folder  # OpenVINO: help needs none

    found = estimate_folder(folder, target=target)
    if output is not None:
        _write(output, found.to_html())
    give_answer(answer, found.as_dict(), lambda: print(found))
    return 0


def _write(output: Path, page: str) -> None:
    from npu_compiler.explanations.show import write_page

    write_page(output, page)
