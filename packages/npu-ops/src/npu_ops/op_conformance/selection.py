"""What a run is asked for: the tasks of its suites, and their list for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from npu_ops.names import first_match
from npu_ops.op_conformance.cases import Case, interface_cases
from npu_ops.op_conformance.models import model_cases
from npu_ops.op_conformance.running.worker import databases
from npu_ops.op_conformance.torchs_tests.operators import CHECKS as TORCH_CHECKS
from npu_ops.op_conformance.torchs_tests.operators import DTYPES

__all__ = ["SUITES", "Selection", "tasks_of"]

SUITES = ("interface", "models", "torch")
_FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class Selection:
    """Filters; an empty one lets everything through.

    Attributes:
        suites: of `SUITES`.
        ops: patterns of names.
        dtypes: names such as `float32`.
        layouts: of the cases.
        models: patterns of networks.
        case: id of the only case.
        checks: of the suite.
        databases: of torch's, `ops`, `modules`, `optimizers`.
        samples: of each cell of torch's databases; None for all.
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
    """The tasks of a selection, suite by suite.

    Args:
        selection: what is asked for.
        options: what every task of a case has beside it: `device`, `baseline`, `rules`.
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
    """The first dtype goes through all checks, the others forward."""
    wanted = selection.checks or tuple(TORCH_CHECKS)
    return [check for check in wanted if check == "forward" or dtype == _FLOATS[0]]
