"""OpAutoCompare over torch's database of ops: npu's kernels are right, so differences are errors.

One sample of every eighth op; `benchmarks/false_alarms.py` goes through all of it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from npu_ops.debugging import OpAutoCompare
from npu_ops.op_conformance.comparison import copy_to, gradients, outcome
from npu_ops.tolerances import stays_on_cpu

EIGHTH = [
    pytest.param(op, id=op.formatted_name)
    for op in op_db[::8]
    if torch.float32 in op.supported_dtypes("cpu")
]


@pytest.mark.parametrize("op", EIGHTH)
@pytest.mark.filterwarnings("ignore")  # hundreds of ops warn; none of it is about npu
def test_a_sound_op_is_no_alarm(op: Any) -> None:
    torch.manual_seed(0)
    inputs = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
    sample = next(iter(inputs))
    first, args, kwargs = copy_to((sample.input, sample.args, sample.kwargs), "npu")
    if stays_on_cpu(op):
        args, kwargs = copy_to((sample.args, sample.kwargs), "cpu")
    with OpAutoCompare() as tool:
        results = outcome(op, (first, args, kwargs))
        if not isinstance(results, type):
            gradients((first, args, kwargs), results)
    assert tool.passed, tool.report()
