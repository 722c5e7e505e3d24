"""Small OpenVINO models, fresh Python processes, traces of torch, and tests of one driver."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

import forked_python
from npu_runtime import observe, sim
from npu_runtime.config import config as settings

# The driver that serves this run, as NPU_DRIVER names it.
DRIVER = settings.driver or "openvino"
# And how many devices it has: NPU_DEVICE=SIM2 is two of the simulated ones.
DEVICES = 2 if settings.device == "SIM2" else 1

deselected_by_reason: dict[str, int] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests of another driver, and counts them by reason."""
    kept, deselected = [], []
    for item in items:
        text = reason_to_leave_out(item)
        if text is None:
            kept.append(item)
            continue
        deselected.append(item)
        deselected_by_reason[text] = deselected_by_reason.get(text, 0) + 1
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept


def reason_to_leave_out(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("driver")
    if marker is not None and marker.args[0] != DRIVER:
        return "for the driver {}: {}".format(*marker.args)
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for text, count in sorted(deselected_by_reason.items()):
        terminalreporter.write_line(f"DESELECTED [{count}] {text}")


@pytest.fixture
def device_count() -> int:
    """The number of devices that the environment of this run requests."""
    return DEVICES


@pytest.fixture
def save_model(tmp_path: Path) -> Callable[[ov.Model], Path]:
    """Writes a model as IR and gives the path of its xml."""

    def save(model: ov.Model) -> Path:
        path = tmp_path / f"{model.get_friendly_name()}.xml"
        ov.save_model(model, path, compress_to_fp16=False)
        return path

    return save


@pytest.fixture
def scale_model() -> ov.Model:
    """Two outputs of static shape (2, 3): x + 1 and 2 * y, with the constants as weights."""
    x = ops.parameter([2, 3], np.float32, name="x")
    y = ops.parameter([2, 3], np.float32, name="y")
    plus = ops.add(x, ops.constant(np.ones((2, 3), np.float32)))
    twice = ops.multiply(y, ops.constant(np.full((2, 3), 2, np.float32)))
    return ov.Model([plus, twice], [x, y], "scale")


@pytest.fixture
def dynamic_model() -> ov.Model:
    """One output, 3 * x, for x of shape (?, 4)."""
    x = ops.parameter([-1, 4], np.float32, name="x")
    return ov.Model([ops.multiply(x, ops.constant(np.float32(3)))], [x], "dynamic")


@pytest.fixture
def counter_model() -> ov.Model:
    """Adds x to a variable that starts at zero, and gives the sum: shape (2,)."""
    x = ops.parameter([2], np.float32, name="x")
    start = ops.constant(np.zeros(2, np.float32))
    state = ops.read_value(start, "sum", ov.Type.f32, ov.PartialShape([2]))
    total = ops.add(state, x)
    return ov.Model([ops.result(total)], [ops.assign(total, "sum")], [x], "counter")


@pytest.fixture
def add_one_model() -> ov.Model:
    """One output, x + 1, for x of shape (64,)."""
    x = ops.parameter([64], np.float32, name="x")
    return ov.Model([ops.add(x, ops.constant(np.float32(1)))], [x], "add_one")


@pytest.fixture
def delayed() -> Iterator[None]:
    """Enqueued work takes up to a millisecond on the simulated device, elsewhere its real time."""
    with sim.delay(0, 1000, seed=7):
        yield


@pytest.fixture
def heard() -> Iterator[list[observe.Event]]:
    """Events that were delivered; the listener is removed when the test ends."""
    events: list[observe.Event] = []
    observe.add_listener(events.extend)
    yield events
    observe.remove_listener(events.extend)


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a separate process, with environment variables as keywords.

    The process is forked from one that has torch, and has npu before the code runs. Tests about
    importing torch, or about the end of a process that did, set is_real for a new interpreter.
    """

    def run(
        code: str, *, is_real: bool = False, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        inherited = dict(os.environ)
        if "NPU_DRIVER" in environment:
            inherited.pop("NPU_DEVICE", None)  # it names a device of this run's driver
        command = [sys.executable, "-c", code]
        variables = inherited | environment
        if is_real:
            return subprocess.run(
                command, env=variables, capture_output=True, text=True, check=False, timeout=120
            )
        return forked_python.run(command, env=variables, timeout=120)

    return run


@dataclass
class Trace:
    """An exported chrome trace, by kind of event."""

    rows: dict[tuple[int, int], str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    spans: list[dict[str, Any]] = field(default_factory=list)
    flow_starts: dict[int, dict[str, Any]] = field(default_factory=dict)
    flow_ends: dict[int, dict[str, Any]] = field(default_factory=dict)

    def of(self, category: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["cat"] == category]

    def row(self, span: dict[str, Any]) -> str:
        return self.rows[span["pid"], span["tid"]]


@pytest.fixture(scope="session")
def read_trace() -> Callable[[str], Trace]:
    """Reads the text of a trace that torch's profiler exported."""
    return _read_trace


def _read_trace(text: str) -> Trace:
    trace = Trace()
    for event in json.loads(text)["traceEvents"]:
        match event["ph"], event["name"]:
            case "M", "thread_name":
                trace.rows[event["pid"], event["tid"]] = event["args"]["name"]
            case "M", "process_name":
                trace.processes[event["pid"]] = event["args"]["name"]
            case "X", _:
                trace.spans.append(event)
            case "s", "ac2g":
                trace.flow_starts[event["id"]] = event
            case "f", "ac2g":
                trace.flow_ends[event["id"]] = event
    return trace
