"""Whether the device computes what the CPU does, over torch's own databases of ops and modules.

``python -m npu_ops.conformance`` runs it; whether a driver keeps its contract is another question,
which `npu_runtime.conformance` answers.
"""

from .cell import Cell, Outcome
from .modules import module_cells
from .operators import CHECKS, operator_cells
from .optimizers import optimizer_cells

__all__ = [
    "CHECKS",
    "Cell",
    "Outcome",
    "module_cells",
    "operator_cells",
    "optimizer_cells",
]
