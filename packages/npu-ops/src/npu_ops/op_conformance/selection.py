"""Arguments of ``npu-ops conformance``, and the tasks that they select."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from npu_command.command_parser import CommandParser
from npu_ops.config import VARIANT_MODES
from npu_ops.names import first_match
from npu_ops.op_conformance.cases import CHECKS as CASE_CHECKS
from npu_ops.op_conformance.cases import LAYOUTS, Case, interface_cases
from npu_ops.op_conformance.models import model_cases
from npu_ops.op_conformance.report import REPORTS
from npu_ops.op_conformance.running.worker import databases
from npu_ops.op_conformance.torch_databases import CHECKS as TORCH_CHECKS
from npu_ops.op_conformance.torch_databases import DTYPES

__all__ = ["SUITES", "Selection", "parse", "selection_of", "tasks_of"]


_DATABASES = ("ops", "modules", "optimizers")
_USUAL_SUITES = ("interface", "models")
_TIMEOUTS_S = {"torch": 300.0, "interface": 60.0, "models": 60.0}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the arguments; exits with 2 and a message if they are invalid."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    arguments.suite = arguments.suite or _suites(arguments)
    for dtype in arguments.dtype:
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            parser.error(f"--dtype must be names such as float32, got {dtype!r}")
    for layout in arguments.layout:
        if layout not in (*LAYOUTS, "recorded"):
            parser.error(f"--layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    if arguments.timeout is None:
        arguments.timeout = max(_TIMEOUTS_S[suite] for suite in arguments.suite)
    if arguments.output is not None and arguments.report is None:
        parser.error(f"--output must be given with --report, one of {', '.join(REPORTS)}")
    only_cases = {
        "--save-baseline": arguments.save_baseline is not None,
        "--baseline": arguments.baseline != "cpu",
        "--rules": bool(arguments.rules),
        "--captures": arguments.captures is not None,
        "--device": arguments.device not in ("", "npu"),
        "--compiled": arguments.compiled,
    }
    for option, is_given in only_cases.items():
        if is_given and "torch" in arguments.suite:
            parser.error(f"{option} must be given with a suite of cases, got --suite torch")
    if not arguments.device:
        arguments.device = "cpu" if arguments.save_baseline else "npu"
    return arguments


def selection_of(arguments: argparse.Namespace) -> Selection:
    """Returns the selection of the arguments."""
    return Selection(
        suites=tuple(arguments.suite),
        ops=tuple(arguments.op),
        dtypes=tuple(arguments.dtype),
        layouts=tuple(arguments.layout),
        models=tuple(arguments.model),
        case=arguments.case,
        checks=tuple(arguments.check),
        databases=tuple(arguments.database or _DATABASES),
        samples=arguments.samples,
    )


def _suites(arguments: argparse.Namespace) -> tuple[str, ...]:
    return ("models",) if arguments.model else _USUAL_SUITES


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-ops conformance",
        description="Compares a device with the CPU, or with another machine's results. Exit code "
        "1 if a result differs, 2 if the run failed.",
    )
    what = parser.add_argument_group("selection")
    what.add_argument(
        "--suite",
        nargs="+",
        choices=SUITES,
        help="the standard op interface, calls recorded from networks, torch's databases "
        f"(default: {' '.join(_USUAL_SUITES)})",
    )
    names = {"nargs": "+", "default": (), "metavar": "PATTERN"}
    what.add_argument("--op", help="ops by name, such as softmax or 'conv*'", **names)  # type: ignore[arg-type]
    what.add_argument("--dtype", nargs="+", default=(), metavar="D", help="dtypes, such as float32")
    what.add_argument("--layout", nargs="+", default=(), metavar="L", help=", ".join(LAYOUTS))
    what.add_argument("--model", help="networks by name, for the suite models", **names)  # type: ignore[arg-type]
    what.add_argument("--case", default="", metavar="ID", help="one case, by its id in a report")
    what.add_argument(
        "--check", nargs="+", default=(), choices=sorted({*CASE_CHECKS, *TORCH_CHECKS})
    )
    what.add_argument(
        "--database", nargs="+", choices=_DATABASES, help="databases of the suite torch"
    )
    what.add_argument(
        "--samples", type=int, metavar="N", help="samples per cell of the suite torch"
    )
    what.add_argument("--list", action="store_true", help="list the checks without running them")
    against = parser.add_argument_group("against what")
    against.add_argument("--device", default="", help="device to test (default: npu)")
    against.add_argument(
        "--baseline", default="cpu", metavar="cpu|DIR", help="reference results (default: cpu)"
    )
    against.add_argument(
        "--save-baseline", type=Path, metavar="DIR", help="write the results of cpu, or of --device"
    )
    against.add_argument(
        "--budget", type=int, default=512, metavar="MB", help="maximum size of a baseline's tensors"
    )
    against.add_argument(
        "--rules", default="", metavar="FILE", help="rules of the device's dtypes and layouts"
    )
    against.add_argument(
        "--variants", choices=VARIANT_MODES, help="variant of ops with a program (NPU_OPS_VARIANT)"
    )
    against.add_argument(
        "--compiled", action="store_true",
        help="judge programs of torch.compile (for NPU_COMPILE_TARGET), of suites of cases; a call "
        "that no program computes is not counted",
    )  # fmt: skip
    how = parser.add_argument_group("how")
    how.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="number of processes"
    )
    how.add_argument("--timeout", type=float, metavar="S", help="seconds per case")
    how.add_argument("--report", choices=sorted(REPORTS), help="format of the report of all cells")
    how.add_argument(
        "--captures",
        type=Path,
        metavar="DIR",
        help="directory for calls of failing cases, for replay",
    )
    how.add_argument("-o", "--output", type=Path, metavar="F", help="output file of the report")
    return parser


SUITES = ("interface", "models", "torch")
_FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class Selection:
    """Filters; an empty filter selects everything.

    Attributes:
        suites: some of `SUITES`.
        ops: patterns of op names.
        dtypes: dtype names such as `float32`.
        layouts: layouts of cases.
        models: patterns of network names.
        case: id of a single case.
        checks: checks of the suites.
        databases: torch's databases, of `ops`, `modules`, `optimizers`.
        samples: maximum samples per cell of torch's databases; None for all.
    """

    suites: tuple[str, ...] = ("interface", "models")
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    case: str = ""
    checks: tuple[str, ...] = ()
    databases: tuple[str, ...] = ("ops", "modules", "optimizers")
    samples: int | None = None


def tasks_of(selection: Selection, **options: Any) -> list[dict[str, Any]]:
    """Returns the tasks of a selection, suite by suite.

    Args:
        selection: the selection.
        options: further fields of every task: `device`, `baseline`, `rules`.
    """
    tasks = []
    for suite, cases in (("interface", interface_cases), ("models", model_cases)):
        if suite in selection.suites:
            tasks += [
                {
                    "suite": suite,
                    "case": case.id,
                    "subject": case.op,
                    "dtype": case.dtype,
                    "layout": case.layout,
                    "checks": selection.checks,
                    **options,
                }
                for case in cases().values()
                if _is_wanted(case, selection)
            ]
    if "torch" in selection.suites and not selection.case:
        tasks += _torch_tasks(selection)
    return tasks


def _is_wanted(case: Case, selection: Selection) -> bool:
    if selection.case:
        return case.id == selection.case
    return (
        (not selection.ops or first_match(case.op, selection.ops) is not None)
        and (not selection.dtypes or case.dtype in selection.dtypes)
        and (not selection.layouts or case.layout in selection.layouts)
        and (not selection.checks or any(check in case.checks for check in selection.checks))
        and (not selection.models or _names_any(case.models, selection.models))
    )


def _names_any(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _torch_tasks(selection: Selection) -> Iterator[dict[str, Any]]:
    for name in selection.databases:
        for index, entry in enumerate(databases()[name]):
            subject = entry.formatted_name if name != "optimizers" else entry.name
            if selection.ops and not _names_any([subject], selection.ops):
                continue
            for dtype in _dtypes(name, entry):
                if selection.dtypes and dtype not in selection.dtypes:
                    continue
                task = {
                    "suite": "torch",
                    "database": name,
                    "index": index,
                    "subject": subject,
                    "dtype": dtype,
                    "most_samples": selection.samples,
                }
                yield task | ({"checks": _checks(selection, dtype)} if name == "ops" else {})


def _dtypes(name: str, entry: Any) -> list[str]:
    if name != "ops":
        return list(_FLOATS)
    supported = entry.supported_dtypes("cpu")
    return [str(dtype).removeprefix("torch.") for dtype in DTYPES if dtype in supported]


def _checks(selection: Selection, dtype: str) -> list[str]:
    """Returns all checks for the first dtype, and forward for the others."""
    wanted = selection.checks or tuple(TORCH_CHECKS)
    return [check for check in wanted if check == "forward" or dtype == _FLOATS[0]]
