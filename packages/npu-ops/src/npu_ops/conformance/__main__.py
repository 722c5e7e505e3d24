"""``python -m npu_ops.conformance``: compares npu with the CPU and prints the verdict."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from npu_ops.config import VARIANT_MODES

from .cell import Cell
from .operators import CHECKS, DTYPES
from .supervision import run_tasks
from .table import failed_cells, summary, write_csv
from .worker import databases

_NAMES = ("ops", "modules", "optimizers")
_FLOATS = ("float32", "float64")
_SHOWN = 40  # failures printed; the CSV has all


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npu_ops.conformance",
        description="Compares npu with the CPU over torch's databases of ops, modules and "
        "optimizers. Exit code 1 when a cell differs.",
    )
    parser.add_argument("databases", nargs="*", metavar="DATABASE", help=f"{', '.join(_NAMES)}")
    parser.add_argument("--filter", default="", metavar="TEXT", help="subjects that contain TEXT")
    parser.add_argument(
        "--dtypes", nargs="+", metavar="D", help="for example float32 (default: all of them)"
    )
    parser.add_argument(
        "--checks", nargs="+", choices=list(CHECKS), default=list(CHECKS), help="of ops"
    )
    parser.add_argument("--samples", type=int, metavar="N", help="of each cell (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds per task")
    parser.add_argument(
        "--variants", choices=VARIANT_MODES, help="of ops that have a program (NPU_OPS_VARIANT)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="where to write all cells")
    return parser


def _tasks(arguments: argparse.Namespace, names: Sequence[str]) -> list[dict[str, Any]]:
    tasks = []
    known = databases()
    for name in names:
        for index, entry in enumerate(known[name]):
            subject = entry.formatted_name if name != "optimizers" else entry.name
            if arguments.filter not in subject:
                continue
            tasks += [
                {
                    "database": name,
                    "index": index,
                    "subject": subject,
                    "dtype": dtype,
                    "most_samples": arguments.samples,
                    **({"checks": _checks(arguments, dtype)} if name == "ops" else {}),
                }
                for dtype in _dtypes(name, entry)
                if not arguments.dtypes or dtype in arguments.dtypes
            ]
    return tasks


def _dtypes(name: str, entry: Any) -> list[str]:
    if name != "ops":
        return list(_FLOATS)
    supported = entry.supported_dtypes("cpu")
    return [str(dtype).removeprefix("torch.") for dtype in DTYPES if dtype in supported]


def _checks(arguments: argparse.Namespace, dtype: str) -> list[str]:
    """The first dtype goes through all checks, the others forward."""
    return [check for check in arguments.checks if check == "forward" or dtype == _FLOATS[0]]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    for name in arguments.databases:
        if name not in _NAMES:
            parser.error(f"expected one of {', '.join(_NAMES)}; got {name!r}")
    for dtype in arguments.dtypes or ():
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            parser.error(f"--dtypes: expected names such as float32; got {dtype!r}")
    tasks = _tasks(arguments, arguments.databases or _NAMES)
    if not tasks:
        parser.error("no entry of the databases is left to compare; widen --filter or --dtypes")
    cells: list[Cell] = []
    done = 0

    def collect(answer: list[Cell]) -> None:
        nonlocal done
        done += 1
        cells.extend(answer)
        if sys.stderr.isatty():
            print(f"\r{done:,} of {len(tasks):,} ", end="", file=sys.stderr, flush=True)

    run_tasks(
        tasks,
        jobs=max(1, arguments.jobs),
        timeout_s=arguments.timeout,
        environment={"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
        | ({"NPU_OPS_VARIANT": arguments.variants} if arguments.variants else {}),
        on_cells=collect,
    )
    if sys.stderr.isatty():
        print(file=sys.stderr)
    cells.sort(key=lambda cell: (cell.check, cell.dtype, cell.subject))
    print(summary(cells))
    failed = failed_cells(cells)
    for cell in failed[:_SHOWN]:
        print(
            f"{cell.outcome.upper()}  {cell.subject} {cell.dtype} {cell.check}: "
            f"{cell.failures} of {cell.samples}; {cell.detail}"
        )
    if len(failed) > _SHOWN:
        print(f"... and {len(failed) - _SHOWN:,} more; --csv FILE writes all")
    if arguments.csv is not None:
        write_csv(cells, arguments.csv)
        print(f"{len(cells):,} cells in {arguments.csv}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
