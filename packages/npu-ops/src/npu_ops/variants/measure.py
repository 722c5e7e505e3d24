"""Measures both bodies of a call on random tensors, and compares what they compute."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import npu_runtime
from npu_ops.variants.call import OpCall, OpProgram, TensorSpec
from npu_ops.variants.records import Measurement

__all__ = ["measure"]

# Largest difference that is rounding, relative to the largest value; sums are taken in another
# order, and low precisions round each partial result differently.
_TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}

_ROUNDS = 15


def measure(
    call: OpCall, program: OpProgram, *, device_index: int = 0, budget_s: float = 0.2
) -> Measurement:
    """Runs both bodies in turn and returns their median times and whether they agree.

    Args:
        call: what is measured; its tensors are drawn from the standard normal distribution, whole
            numbers are zeros and ones.
        program: for the call.
        device_index: of the npu device.
        budget_s: seconds after which no further round begins.

    Precondition: this thread's ops run on the host kernels (choice.host_kernels).
    """
    generator = torch.Generator().manual_seed(0)
    arguments = [
        _draw(value, generator, device_index) if isinstance(value, TensorSpec) else value
        for value in call.arguments
    ]
    runner = npu_runtime.Program(program.program)
    specs = [call.arguments[position] for position in program.inputs]
    inputs = [
        arguments[position].permute(spec.order).contiguous() if spec.order else arguments[position]
        for position, spec in zip(program.inputs, specs, strict=True)
    ]
    host_results = _flat(call.invoke(arguments))
    error = _largest_error(program, runner.run(inputs), host_results)
    floats = [spec.dtype for spec in specs if spec.dtype in _TOLERANCE]
    program_times, host_times = _time_in_turn(
        lambda: runner.run(inputs), lambda: call.invoke(arguments), device_index, budget_s
    )
    return Measurement(
        program_us=statistics.median(program_times),
        host_us=statistics.median(host_times),
        is_equal=error <= max((_TOLERANCE[dtype] for dtype in floats), default=0.0),
        largest_error=error,
    )


def _draw(spec: TensorSpec, generator: torch.Generator, device_index: int) -> torch.Tensor:
    device = torch.device("npu", device_index)
    if spec.dtype.is_floating_point:
        values = torch.randn(spec.shape, generator=generator).to(spec.dtype)
    else:
        values = torch.randint(0, 2, spec.shape, generator=generator).to(spec.dtype)
    if not spec.order:
        return values.to(device)
    inverse = [spec.order.index(axis) for axis in range(len(spec.order))]
    return values.permute(spec.order).contiguous().to(device).permute(inverse)


def _flat(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _largest_error(
    program: OpProgram, outputs: Sequence[torch.Tensor], host_results: Sequence[Any]
) -> float:
    worst = 0.0
    for output, expected in zip(program.results, host_results, strict=True):
        if output < 0 or not isinstance(expected, torch.Tensor):
            continue
        order = program.output_orders[output]
        got = outputs[output].permute(order) if order else outputs[output]
        if got.dtype != expected.dtype or got.shape != expected.shape:
            return float("inf")
        left, right = got.cpu().double(), expected.cpu().double()
        scale = max(float(right.abs().max()), 1.0)
        difference = float((left - right).abs().max()) / scale
        worst = max(worst, difference if difference == difference else float("inf"))
    return worst


def _time_in_turn(
    program: Callable[[], object], host: Callable[[], object], device_index: int, budget_s: float
) -> tuple[list[float], list[float]]:
    """Microseconds per call of each, alternating, so that both meet the same noise."""
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + budget_s
    for _ in range(_ROUNDS):
        for body, spent in zip((program, host), times, strict=True):
            count = _count_for(spent)
            start = time.perf_counter()
            for _ in range(count):
                body()
            torch.accelerator.synchronize(device_index)
            spent.append((time.perf_counter() - start) / count * 1e6)
        if time.perf_counter() > end and len(times[0]) >= 3:
            break
    return times[0][1:], times[1][1:]  # the first ones warm up


def _count_for(spent_us: Sequence[float]) -> int:
    """Calls per timing, so that one timing takes about half a millisecond."""
    return max(1, min(50, int(500 / max(spent_us[-1], 1)))) if spent_us else 1
