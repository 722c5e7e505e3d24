"""Measurements of a call's program and host kernel, and the file that stores them per device."""

from __future__ import annotations

import json
import logging
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import npu_runtime
from npu_command.whole_files import locked, write_json
from npu_ops.variants.call import OpCall, OpProgram, TensorSpec

__all__ = ["Measurement", "Records", "measure"]


_logger = logging.getLogger(__name__)
_FORMAT = 1


@dataclass(frozen=True)
class Measurement:
    """Times of both variants of a call on a device.

    Attributes:
        program_us: median time of the program's call, in microseconds.
        host_us: median time of the host kernel's call, in microseconds.
        is_equal: whether the results agreed within the dtype's tolerance.
        largest_error: largest difference, relative to the largest value of the host's result.
    """

    program_us: float
    host_us: float
    is_equal: bool
    largest_error: float


class Records:
    """Measurements by device and call. Threads and processes may share the file."""

    def __init__(self, path: Path) -> None:
        """Sets the path of the file, which need not exist; it is read on first use."""
        self.path = path
        self._lock = threading.Lock()
        self._devices: dict[str, dict[str, Measurement]] | None = None

    def find(self, device: str, call: str) -> Measurement | None:
        """Returns the measurement of a call on a device, or None."""
        with self._lock:
            return self._known().get(device, {}).get(call)

    def calls(self, device: str) -> dict[str, Measurement]:
        """Returns all measurements of a device by call, in alphabetical order."""
        with self._lock:
            return dict(sorted(self._known().get(device, {}).items()))

    def add(self, device: str, call: str, measurement: Measurement) -> None:
        """Stores a measurement; keeps those that other processes stored meanwhile.

        If the file cannot be written, warns and keeps the measurement in this process.
        """
        with self._lock:
            self._known().setdefault(device, {})[call] = measurement
            try:
                with locked(self.path):
                    devices = _read(self.path)
                    devices.setdefault(device, {})[call] = measurement
                    _write(self.path, devices)
            except OSError as failure:
                _logger.warning("op records: cannot write %s (%s)", self.path, failure)

    def forget(self, device: str) -> int:
        """Removes all measurements of a device; returns how many there were."""
        with self._lock, locked(self.path):
            devices = _read(self.path)
            removed = len(devices.pop(device, {}))
            _write(self.path, devices)
            self._devices = devices
            return removed

    def _known(self) -> dict[str, dict[str, Measurement]]:
        if self._devices is None:
            self._devices = _read(self.path)
        return self._devices


def _read(path: Path) -> dict[str, dict[str, Measurement]]:
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT:
            _logger.warning("op records: %s has another format; measuring again", path)
            return {}
        return {
            device: {call: Measurement(**values) for call, values in calls.items()}
            for device, calls in content["devices"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        _logger.warning("op records: %s cannot be read (%s); measuring again", path, failure)
        return {}


def _write(path: Path, devices: dict[str, dict[str, Measurement]]) -> None:
    content = {
        "format": _FORMAT,
        "devices": {
            device: {call: asdict(value) for call, value in sorted(calls.items())}
            for device, calls in sorted(devices.items())
        },
    }
    write_json(path, content, indent=1)


# Maximum rounding difference, relative to the largest value: sums have another order, and low
# precisions round each partial result.
_TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}

_ROUNDS = 15


def measure(
    call: OpCall, program: OpProgram, *, device_index: int = 0, budget_s: float = 0.2
) -> Measurement:
    """Runs both variants alternately; returns their median times and whether they agree.

    Args:
        call: the call; its tensors are drawn from the standard normal distribution, integers are 0
            or 1.
        program: program of the call.
        device_index: of the npu device.
        budget_s: time limit in seconds for starting another round.

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
    """Returns microseconds per call of each, alternating, so that both have the same noise."""
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
    """Returns the number of calls per timing, so that one takes about half a millisecond."""
    return max(1, min(50, int(500 / max(spent_us[-1], 1)))) if spent_us else 1
