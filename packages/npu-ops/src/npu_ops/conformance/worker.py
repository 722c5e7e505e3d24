"""The child process: reads tasks from its standard input, answers each with its cells as JSON.

Why a child: an op that ends the process costs one task, not the run (`supervision.py`).
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .cell import Cell
from .modules import module_cells
from .operators import operator_cells
from .optimizers import optimizer_cells

__all__ = ["databases", "run_task"]


def databases() -> dict[str, list[Any]]:
    """The databases of torch.testing by the names that the command takes; takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    return {"ops": op_db, "modules": module_db, "optimizers": optim_db}


_CELLS: dict[str, Callable[..., list[Cell]]] = {
    "ops": operator_cells,
    "modules": module_cells,
    "optimizers": optimizer_cells,
}


def run_task(entry: Any, task: dict[str, Any]) -> list[Cell]:
    """The cells of one entry and dtype."""
    dtype = getattr(torch, task["dtype"])
    options = {"most_samples": task["most_samples"]}
    if task["database"] == "ops":
        options["checks"] = tuple(task["checks"])
    return _CELLS[task["database"]](entry, dtype, **options)


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # what an op prints is no answer
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    known = databases()
    for line in sys.stdin:
        task = json.loads(line)
        cells = run_task(known[task["database"]][task["index"]], task)
        answers.write(json.dumps([dataclasses.asdict(cell) for cell in cells]) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
