"""Conformance of the device's ops with the CPU's.

Three suites have one command, ``npu-ops conformance``: the standard op interface (interface/, whose
cases are in cases/), calls recorded from networks (models/), and torch's own databases (here).
`npu_runtime.driver_conformance` checks drivers.
"""

from npu_ops.op_conformance.cell import Cell, Outcome
from npu_ops.op_conformance.torch_databases import (
    CHECKS,
    module_cells,
    operator_cells,
    optimizer_cells,
)

__all__ = [
    "CHECKS",
    "Cell",
    "Outcome",
    "module_cells",
    "operator_cells",
    "optimizer_cells",
]
