"""``python -m npu_compiler.suite``: compiles each architecture and prints the result."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from npu_compiler.errors import SuiteError
from npu_compiler.suite import report
from npu_compiler.suite.measurement import Measurement, run_all
from npu_compiler.suite.report import Facts, draws_section, model_coverage_page
from npu_compiler.suite.table import FAMILIES, select


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npu_compiler.suite",
        description="Compiles small models of many architectures with random weights and compares "
        "them with eager fp32 on the CPU. Exit code 1 if one is wrong or does not finish.",
    )
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="NAME", help="only these architectures"
    )
    parser.add_argument("--family", metavar="F", help=f"one of {', '.join(FAMILIES)}")
    parser.add_argument(
        "--timm", action="store_true", help="models of timm instead of transformers"
    )
    parser.add_argument(
        "--device", choices=("npu", "cpu"), default="npu", help="device of the models"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of weights and inputs"
    )
    parser.add_argument(
        "--coinciding",
        type=int,
        default=0,
        metavar="N",
        help="number of draws with equal sizes of tokens, heads, head channels and rows, "
        "instead of the usual sizes",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="parallel processes")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds per model")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write rows to this CSV file")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write rows to this Markdown file"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = _parser()
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = parser.parse_args(given)
    try:
        chosen = select(arguments.only, arguments.family, is_timm=arguments.timm)
    except SuiteError as error:
        parser.error(str(error))
    if not chosen:
        parser.error("no architecture matches. Omit --only or --family.")

    def show(row: Measurement) -> None:
        print(report.row_line(report.cells(row)), flush=True)

    print(report.row_line(report.HEADER))
    rows = run_all(
        chosen,
        device=arguments.device,
        seed=arguments.seed,
        timeout_s=arguments.timeout,
        jobs=max(1, min(arguments.jobs, os.cpu_count() or 1)),
        on_row=show,
        draws=tuple(range(arguments.coinciding)) or (None,),
    )
    print(report.summary(rows))
    if arguments.csv is not None:
        report.write_csv(rows, arguments.csv)
    if arguments.page is not None:
        write = draws_section if arguments.coinciding else model_coverage_page
        arguments.page.write_text(write(rows, Facts.of_this_machine(given)), "utf-8")
    return 0 if all(row.is_right or row.is_left_out for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
