"""Runs a model through OpenVINO's NPU plugin and through its CPU plugin, and compares.

It is started as a process of its own, so that whatever the plugin does is a finding and not the end
of the caller: `python -m npu_compiler.readiness.plugin model.xml`. The plugin takes its way for
machines without an NPU, on which its parts are compiled for the CPU.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import openvino as ov

from npu_compiler.openvino_core import openvino_core

__all__ = ["main"]

# One program is not cut into parts: with cutting on, the plugin of OpenVINO 2026.4.1 hands float16
# memory to parts that read float32, and norms come out wrong.
_OPTIONS = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_ONLINE_PIPELINE": "NONE"}


def main(path: str) -> dict[str, Any]:
    """Compiles and runs a model on both; returns what happened.

    Args:
        path: of the IR; its shapes are static.
    """
    core = openvino_core()
    model = core.read_model(path)
    inputs = _inputs(model)
    expected = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(inputs)
    try:
        compiled = core.compile_model(core.read_model(path), "NPU", _OPTIONS)
    except RuntimeError as failure:
        return {"step": "compile", "failure": " ".join(str(failure).split())[-300:]}
    try:
        found = compiled(inputs)
    except RuntimeError as failure:
        return {"step": "run", "failure": " ".join(str(failure).split())[-300:]}
    errors = [_error(found[i], expected[i]) for i in range(len(model.outputs))]
    return {"step": "done", "error": max(errors, default=0.0)}


def _inputs(model: ov.Model) -> list[Any]:
    """Seeded values for each input; integers are small, since they may be indices."""
    generator = np.random.default_rng(0)
    values: list[Any] = []
    for port in model.inputs:
        shape, dtype = list(port.shape), port.element_type.to_dtype()
        if port.element_type.is_real():
            values.append(generator.standard_normal(shape).astype(dtype))
        else:
            values.append(generator.integers(0, 2, shape).astype(dtype))
    return values


def _error(found: Any, expected: Any) -> float:
    """The largest difference by the largest value; what is not finite must be so in both."""
    left, right = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if not np.array_equal(np.isfinite(left), np.isfinite(right)):
        return float("inf")
    is_finite = np.isfinite(right)
    if not is_finite.any():
        return 0.0
    scale = max(float(np.abs(right[is_finite]).max()), 1e-6)
    return float(np.abs(left[is_finite] - right[is_finite]).max()) / scale


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
