"""Common parts: running a program under the command, and the schema of a Chrome trace."""

import gzip
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import forked_python
from npu_profiler.trace_format.timeline import Piece, Track
from npu_profiler.trace_format.trace_file import (
    TraceFile,
    format_piece,
    format_tracks,
    new_flow_ids,
)

PRELOAD = ("torch._dynamo",)  # which torch's profiler and optimizers import


@dataclass(frozen=True)
class Traced:
    returncode: int
    stdout: str
    stderr: str
    path: Path

    @property
    def document(self) -> dict[str, Any]:
        raw = self.path.read_bytes()
        return json.loads(gzip.decompress(raw) if self.path.suffix == ".gz" else raw)

    def events(self, phase: str, category: str | None = None) -> list[dict[str, Any]]:
        return [
            event
            for event in self.document["traceEvents"]
            if event["ph"] == phase and (category is None or event.get("cat") == category)
        ]

    def names(self, phase: str, category: str | None = None) -> list[str]:
        return [event["name"] for event in self.events(phase, category)]

    def rows(self) -> dict[str, tuple[int, int]]:
        return {
            event["args"]["name"]: (event["pid"], event["tid"])
            for event in self.events("M")
            if event["name"] == "thread_name"
        }

    def processes(self) -> dict[str, int]:
        return {
            event["args"]["name"]: event["pid"]
            for event in self.events("M")
            if event["name"] == "process_name"
        }


# One ReLU, as OpenVINO's IR: this package builds no graphs.
RELU = """<?xml version="1.0"?>
<net name="relu" version="11">
<layers>
<layer id="0" name="x" type="Parameter" version="opset1">
<data shape="2,3" element_type="f32"/>
<output><port id="0" precision="FP32" names="x"><dim>2</dim><dim>3</dim></port></output>
</layer>
<layer id="1" name="relu" type="ReLU" version="opset1">
<input><port id="0" precision="FP32"><dim>2</dim><dim>3</dim></port></input>
<output><port id="1" precision="FP32" names="y"><dim>2</dim><dim>3</dim></port></output>
</layer>
<layer id="2" name="y" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>2</dim><dim>3</dim></port></input>
</layer>
</layers>
<edges>
<edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
<edge from-layer="1" from-port="1" to-layer="2" to-port="0"/>
</edges>
</net>"""


@pytest.fixture
def relu_model(tmp_path):
    """Writes `model.xml`, a ReLU of (2, 3), and `large.xml`, the same of (4096, 4096)."""
    large = RELU.replace("2,3", "4096,4096").replace(
        "<dim>2</dim><dim>3</dim>", "<dim>4096</dim>" * 2
    )
    for name, text in (("model", RELU), ("large", large)):
        (tmp_path / f"{name}.xml").write_text(text)
        (tmp_path / f"{name}.bin").touch()


@pytest.fixture
def run_python(tmp_path):
    """Runs `python` with arguments in a separate directory."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **environment},
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def run_forked(tmp_path):
    """Runs `python` as `run_python` does, in a process forked from one that has imported torch."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return forked_python.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            timeout=300,
            preload=PRELOAD,
        )

    return run


@pytest.fixture
def start_forked(tmp_path):
    """Starts `python` with arguments as `run_forked` does; returns the process."""

    def start(*arguments: str, stdout: int | None = None, **environment: str) -> Any:
        return forked_python.start(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            stdout=stdout,
            preload=PRELOAD,
        )

    return start


@pytest.fixture
def run_lines(run_forked, tmp_path):
    """Runs a program's text in a separate process, and returns its output by lines."""

    def run(source: str) -> list[str]:
        program = tmp_path / "body.py"
        program.write_text(f"import os\nos.dup2(1, 2)\n{source}")
        done = run_forked("body.py")
        program.unlink()
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


@pytest.fixture
def run_trace(run_python, run_forked, tmp_path, check_schema):
    """Runs a script's text under `npu-profiler trace`, and checks the schema of its trace. With
    `is_new` the process is a new interpreter, so that the script imports torch.
    """

    def run(
        source: str,
        *arguments: str,
        options: tuple[str, ...] = (),
        output: str = "trace.json",
        is_new: bool = False,
        **environment: str,
    ) -> Traced:
        (tmp_path / "program.py").write_text(source)
        command = ["-m", "npu_profiler", "trace", "-o", output, *options]
        start = run_python if is_new else run_forked
        result = start(*command, "program.py", *arguments, **environment)
        traced = Traced(result.returncode, result.stdout, result.stderr, tmp_path / output)
        if traced.path.exists():
            check_schema(traced.document)
        return traced

    return run


@pytest.fixture(scope="session")
def check_schema() -> Callable[[dict[str, Any]], None]:
    """Asserts that a document is a Chrome trace which a viewer shows whole."""
    return _check_schema


REQUIRED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"},
    "C": {"name", "pid", "ts", "args"},
    "M": {"name", "pid", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}


def _check_schema(document: dict[str, Any]) -> None:
    assert isinstance(document["baseTimeNanoseconds"], int)
    events = document["traceEvents"]
    for event in events:
        missing = REQUIRED[event["ph"]] - event.keys()
        assert not missing, (missing, event)
        assert event.get("ts", 0) >= 0, event
        assert event.get("dur", 0) >= 0, event
    _check_counters_and_names(events)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xisf"}
    assert used <= named, used - named
    slices = _slices_by_track(events)
    for track in slices.values():
        _check_nesting(sorted(track, key=lambda ends: (ends[0], -ends[1])))
    _check_flows(events, slices)


METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def _check_counters_and_names(events):
    for event in events:
        if event["ph"] == "C":
            values = event["args"].values()
            assert values, event
            assert all(type(value) in (int, float) for value in values), event
        elif event["ph"] == "M":
            key, kind = METADATA[event["name"]]
            assert type(event["args"][key]) is kind, event
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    assert {e["pid"] for e in events} <= processes


def _slices_by_track(events):
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            slices[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    return slices


def _check_nesting(track):
    open_ends = []
    for start, end in track:
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], "slices of one track cross"
        open_ends.append(end)


def _check_flows(events, slices):
    ends = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            assert isinstance(event["id"], int), "Perfetto drops an arrow with another id"
            assert event["ph"] not in ends[event["id"]], "a flow's id must be its own"
            ends[event["id"]][event["ph"]] = event
    for flow in ends.values():
        assert flow.keys() == {"s", "f"}, flow
        assert flow["s"]["ts"] <= flow["f"]["ts"], flow
        assert flow["s"]["name"] == flow["f"]["name"]
        for event in flow.values():
            moment = round(event["ts"] * 1000)
            track = slices[event["pid"], event["tid"]]
            assert any(start <= moment <= end for start, end in track), event


@pytest.fixture
def write_trace(tmp_path) -> Callable[..., Path]:
    """Writes events as a trace, like a recording."""

    def write(
        *,
        slices=(),
        instants=(),
        samples=(),
        flows=(),
        name: str = "trace.json",
        is_complete: bool = True,
        facts: dict[str, Any] | None = None,
    ) -> Path:
        path = tmp_path / name
        held = [*slices, *instants, *samples]
        tracks = {item.track: None for item in held} or {
            Track(1, 1, "main thread", "python x"): None
        }
        file = TraceFile(path, start_ns=0, first=format_tracks(tracks))
        file.write(
            format_piece(Piece(slices, instants, samples, flows), 0, flow_ids=new_flow_ids())
        )
        if is_complete:
            file.finish(facts or {})
        else:
            file.close()
        return path

    return write
