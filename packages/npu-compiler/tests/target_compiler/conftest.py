"""A model for the library with the interface of Intel's NPU compiler."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest


@pytest.fixture
def model():
    """A sum of an input and a constant, called the_sum."""
    x = ops.parameter([2, 3], ov.Type.f16, name="x")
    total = ops.add(x, ops.constant(np.ones((2, 3), np.float16)))
    total.set_friendly_name("the_sum")
    return ov.Model([total], [x], "little")
