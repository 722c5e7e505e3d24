"""A sample of `python -m npu_ops.op_conformance`: every op of torch's database, a few samples each.

float32 goes through all checks. Each of the other dtypes goes forward with every third op, so that
the file stays within a minute. What needs more than a comparison is in the other files.
"""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from npu_ops.op_conformance import CHECKS, Outcome, operator_cells
from npu_ops.tolerances import EXPECTED

SAMPLES = {torch.float32: 2, torch.bfloat16: 1, torch.int64: 1, torch.bool: 1}
THIRDS = {torch.bfloat16: 0, torch.int64: 1, torch.bool: 2}

CASES = [
    pytest.param(op, dtype, id=f"{op.formatted_name}-{str(dtype).removeprefix('torch.')}")
    for number, op in enumerate(op_db)
    for dtype in SAMPLES
    if THIRDS.get(dtype, number % 3) == number % 3 and dtype in op.supported_dtypes("cpu")
]

pytestmark = pytest.mark.filterwarnings("ignore")  # hundreds of ops warn; none of it is about npu


@pytest.mark.parametrize("op, dtype", CASES)
def test_op_equals_the_cpu(op, dtype):
    checks = tuple(CHECKS) if dtype is torch.float32 else ("forward",)
    for cell in operator_cells(op, dtype, checks=checks, most_samples=SAMPLES[dtype]):
        if (cell.subject, cell.dtype, cell.check) not in EXPECTED:
            assert cell.outcome in (Outcome.PASSED, Outcome.EMPTY), cell
