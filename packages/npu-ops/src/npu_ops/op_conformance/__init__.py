"""Conformance of the device's ops with the CPU's.

The command ``npu-ops conformance`` has three suites: the standard op interface (interface/, with
its cases in cases/), calls recorded from networks (models/), and torch's own databases (here).
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
