"""Times calls, and builds the smallest program, for these benchmarks."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def median_us(
    call: Callable[[], object],
    *,
    repeats: int = 9,
    calls: int | None = None,
    before: Callable[[], object] = lambda: None,
) -> float:
    """Median over ``repeats`` of the microseconds for one of ``calls`` calls (None: some 20 ms).

    ``before`` runs before each repeat, untimed.
    """
    if calls is None:
        start = time.perf_counter_ns()
        call()
        calls = max(3, min(2000, 20_000_000 // (time.perf_counter_ns() - start + 1)))
    samples = []
    for _ in range(repeats):
        before()
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter_ns() - start) / calls / 1000)
    return statistics.median(samples)


def relu_model() -> ov.Model:
    """The relu of 16 floats: nothing but the call costs time."""
    x = ops.parameter([16], np.float32, name="x")
    return ov.Model([ops.relu(x)], [x], "relu")


def save_relu_model(folder: str) -> Path:
    """Writes that model as IR and gives its path."""
    path = Path(folder, "relu.xml")
    ov.save_model(relu_model(), path, compress_to_fp16=False)
    return path
