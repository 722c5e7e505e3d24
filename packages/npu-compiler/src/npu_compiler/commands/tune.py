"""`npu-compiler tune`: tunes the graphs that a script compiles, or moves the records."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer
from npu_compiler.commands.explain import check_script, run_script
from npu_compiler.errors import OptionError

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Tunes a script, or exports, imports or lists records; returns the exit code."""
    parser = CommandParser(
        prog="npu-compiler tune",
        description="Run a script and find the fastest way to compile its graphs, by measuring on "
        "this device or by the compiler's estimates for another.",
        check=_check,
    )
    parser.add_argument(
        "--budget", type=float, default=20.0, help="seconds per graph (default: 20)"
    )
    parser.add_argument(
        "--max-error", type=float, default=1e-4, help="largest relative difference (default: 1e-4)"
    )
    parser.add_argument(
        "--target", metavar="NPU",
        help="rank by the compiler's estimates for this NPU, such as lunar-lake; measure nothing",
    )  # fmt: skip
    parser.add_argument("--export", type=Path, metavar="FILE", help="write all records to a file")
    parser.add_argument(
        "--import", type=Path, metavar="FILE", dest="import_", help="read records from a file"
    )
    add_json(parser)
    parser.add_argument(
        "script", type=Path, nargs="?", help="script to tune; without one, records are listed"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    given = parser.parse_args(arguments)
    from npu_compiler.tuning.estimation import estimator_for  # not needed for help
    from npu_compiler.tuning.run import open_run
    from npu_compiler.tuning.store import TuningReport, TuningStore

    store = TuningStore()
    code = 0
    lines = []
    report = None
    if given.import_ is not None:
        lines.append(f"{store.import_(given.import_)} records read into {store.directory}")
    if given.script is not None:
        with (
            estimator_for(given.target) as estimator,
            open_run(
                budget_s=given.budget, max_error=given.max_error, estimator=estimator
            ) as session,
        ):
            code = run_script(given.script, given.arguments)
        report = TuningReport(tuple(session.records), session.skipped)
    if given.export is not None:
        lines.append(f"{store.export(given.export)} records written to {given.export}")
    if given.import_ is None and given.script is None and given.export is None:
        report = TuningReport(store.records(), {})
    if report is not None:
        lines.append(str(report))
    document = {} if report is None else dataclasses.asdict(report)
    give_answer(given.json, document, lambda: print("\n".join(lines)))
    return code


def _check(options: argparse.Namespace) -> None:
    if options.script is not None:
        check_script(options.script)
    elif options.target is not None:
        raise OptionError(
            "`npu-compiler tune --target` must be given with a script, got none. Name one that "
            "uses torch.compile(backend='npu').",
            code="script-absent",
        )
