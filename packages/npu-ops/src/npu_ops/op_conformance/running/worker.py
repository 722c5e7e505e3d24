"""Child process: reads tasks from standard input, and writes a line of JSON for each.

A crash ends one task, not the run. A task names its suite.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from npu_command.children import serve
from npu_ops.errors import OpsError
from npu_ops.op_conformance.baseline import load_baseline
from npu_ops.op_conformance.cases.case import Case
from npu_ops.op_conformance.cases.templates import interface_cases
from npu_ops.op_conformance.cell import Cell
from npu_ops.op_conformance.models import model_cases
from npu_ops.op_conformance.rules import load_rules
from npu_ops.op_conformance.running.cases import capture_case, case_cells, case_records
from npu_ops.op_conformance.torch_databases import module_cells, operator_cells, optimizer_cells

__all__ = ["databases", "run_task"]


@functools.cache
def databases() -> dict[str, list[Any]]:
    """Returns the databases of torch.testing by the command's names; takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    return {"ops": op_db, "modules": module_db, "optimizers": optim_db}


_CELLS: dict[str, Callable[..., list[Cell]]] = {
    "ops": operator_cells,
    "modules": module_cells,
    "optimizers": optimizer_cells,
}
_CASES: dict[str, Callable[[], dict[str, Case]]] = {
    "interface": interface_cases,
    "models": model_cases,
}


def run_task(task: dict[str, Any]) -> list[Any]:
    """Returns the rows of a task: cells, captures, or records of a baseline."""
    if task["suite"] == "torch":
        return [dataclasses.asdict(cell) for cell in _torch_cells(task)]
    case = _CASES[task["suite"]]()[task["case"]]
    if task.get("saves"):
        return case_records(case, task["device"])
    rules = load_rules(task["rules"]) if task["rules"] else None
    if task.get("captures"):
        (check,) = task["checks"]
        folder = capture_case(case, check, task["captures"], device=task["device"], rules=rules)
        return [] if folder is None else [str(folder)]
    cells = case_cells(
        case,
        device=task["device"],
        baseline=None if task["baseline"] == "cpu" else load_baseline(task["baseline"]),
        rules=rules,
        checks=tuple(task["checks"]) if task["checks"] else None,
        is_compiled=task.get("is_compiled", False),
    )
    return [dataclasses.asdict(cell) for cell in cells]


def _answer(task: dict[str, Any]) -> list[Any] | dict[str, str]:
    """Returns the rows of a task, or the error if it cannot run as requested."""
    try:
        return run_task(task)
    except OpsError as error:
        return {"message": error.message, "code": error.code}


def _torch_cells(task: dict[str, Any]) -> list[Cell]:
    """Returns the cells of a database entry and dtype."""
    entry = databases()[task["database"]][task["index"]]
    dtype = getattr(torch, task["dtype"])
    options = {"most_samples": task["most_samples"]}
    if task["database"] == "ops":
        options["checks"] = tuple(task["checks"])
    return _CELLS[task["database"]](entry, dtype, **options)


def main() -> None:
    """Runs tasks until the input ends."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    serve(lambda task, say: say(_answer(task)))


if __name__ == "__main__":
    main()
