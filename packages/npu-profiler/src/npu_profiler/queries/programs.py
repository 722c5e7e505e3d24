"""Runs of programs, their layers, and their source modules and Python lines.

Layers are sampled: shares are of the runs that recorded them. Modules come from `--modules` (calls
on the host), from `--stacks` (Python calls of modules), and from layers with a recorded module;
lines come from `--stacks` and from layers.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from npu_profiler.queries.spans import Launch
from npu_profiler.reading import SliceRef, Trace
from npu_profiler.recording.schedule import ENGINES
from npu_profiler.roofline.layer_cost import Cost, costs_of_layers

__all__ = [
    "LayerRow",
    "OriginRow",
    "ProgramRow",
    "has_python_calls",
    "layer_kinds",
    "layer_ns",
    "layer_rows",
    "layered_program_ns",
    "line_rows",
    "module_rows",
    "program_rows",
    "sum_known",
]


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """All runs of one program on one device."""

    name: str
    device: int
    runs: int
    total_ns: int
    least_ns: int
    most_ns: int
    layered: int  # number of its runs with recorded layers
    layered_ns: int  # the time of those runs
    layer_ns: int  # the time of their layers

    @property
    def mean_ns(self) -> float:
        """The time of one run."""
        return self.total_ns / self.runs


def program_rows(trace: Trace) -> list[ProgramRow]:
    """Programs by their time, the longest first."""
    runs: dict[tuple[str, int], list[int]] = defaultdict(list)
    for program in trace.slices("program"):
        runs[program.name, program.track.device or 0].append(program.duration_ns)
    layered: dict[tuple[str, int], dict[SliceRef, int]] = defaultdict(lambda: defaultdict(int))
    for layer in trace.slices("layer"):
        around = layer.parent
        if around is not None:
            layered[around.name, around.track.device or 0][around] += layer_ns(layer)
    rows = []
    for (name, device), times in runs.items():
        told = layered.get((name, device), {})
        rows.append(
            ProgramRow(
                name,
                device,
                len(times),
                sum(times),
                min(times),
                max(times),
                len(told),
                sum(run.duration_ns for run in told),
                sum(told.values()),
            )
        )
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))


def layer_ns(layer: SliceRef) -> int:
    """Returns a layer's time from the device, which may exceed its drawn slice."""
    told_us = layer.args.get("duration_us")
    return round(told_us * 1000) if isinstance(told_us, int | float) else layer.duration_ns


@dataclass(frozen=True, slots=True)
class LayerRow:
    """All recorded runs of one layer, or of all layers of one kind."""

    name: str  # of the layer; empty for a kind
    program: str  # its program; empty for a kind
    module: str  # path of its torch module; empty if unknown
    kind: str  # OpenVINO's type of it: "FullyConnected"
    precision: str
    implementation: str  # the device's kernel
    layers: int  # number of different layers
    calls: int
    total_ns: int
    flops: float | None  # of its runs with known operations; None if there are none
    # Read and written in its runs with known shapes; None without.
    moved_bytes: float | None
    line: str  # its Python line; empty if unknown
    engine_ns: Mapping[str, int]  # time of each of `ENGINES`, of an estimate; empty without


def layer_rows(trace: Trace) -> list[LayerRow]:
    """Layers by their time, the longest first."""
    return _grouped(trace, lambda layer: (layer.name, layer.parent and layer.parent.name))


def layer_kinds(trace: Trace) -> list[LayerRow]:
    """Layers of one type, precision and implementation together, the longest first."""
    return _grouped(
        trace,
        lambda layer: tuple(layer.args.get(key) for key in ("type", "precision", "implementation")),
        is_kind=True,
    )


def layered_program_ns(trace: Trace) -> int:
    """Returns the time of the program runs with recorded layers."""
    runs = {layer.parent for layer in trace.slices("layer")}
    return sum(run.duration_ns for run in runs if run is not None)


def sum_known(values: Iterable[float | None]) -> float | None:
    """Returns the sum of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _grouped(
    trace: Trace, key: Callable[[SliceRef], Hashable], *, is_kind: bool = False
) -> list[LayerRow]:
    groups: dict[Hashable, list[SliceRef]] = defaultdict(list)
    costs: dict[SliceRef, Cost] = {}
    for layer, _, cost in costs_of_layers(trace):
        groups[key(layer)].append(layer)
        costs[layer] = cost
    rows = []
    for group in groups.values():
        args = group[-1].args
        program = group[-1].parent
        rows.append(
            LayerRow(
                name="" if is_kind else group[-1].name,
                program="" if is_kind or program is None else program.name,
                module="" if is_kind else _text(args.get("module")),
                kind=_text(args.get("type")),
                precision=_text(args.get("precision")),
                implementation=_text(args.get("implementation")),
                layers=len({(layer.name, layer.parent and layer.parent.name) for layer in group}),
                calls=len(group),
                total_ns=sum(map(layer_ns, group)),
                flops=sum_known(costs[layer].flops for layer in group),
                moved_bytes=sum_known(costs[layer].size_bytes for layer in group),
                line="" if is_kind else _text(args.get("line")),
                engine_ns=_engine_ns(group),
            )
        )
    return sorted(rows, key=lambda row: (-row.total_ns, row.name, row.kind))


def _engine_ns(group: Iterable[SliceRef]) -> dict[str, int]:
    spent: Counter[str] = Counter()
    for layer in group:
        told = layer.args
        for engine in ENGINES:
            if f"{engine}_us" in told:
                spent[engine] += round(told[f"{engine}_us"] * 1000)
    return dict(spent)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


_MODULE_CALL = "nn.Module: "
_OWN_LINE = re.compile(r".+\(\d+\): .+")


@dataclass(frozen=True, slots=True)
class OriginRow:
    """Times of one module or one line."""

    # Path of the module, or "file.py:12" of a layer, or "file.py(12): function" of a call.
    name: str
    kind: str  # the module's class, if known
    calls: int  # on the host
    self_ns: int  # host time without calls of the same sort within
    total_ns: int  # host time with them
    device_ns: int  # time of programs that were launched within the calls
    layers: int  # recorded runs of layers that come from it
    layer_ns: int  # their time


def module_rows(trace: Trace, launched: Iterable[Launch]) -> list[OriginRow]:
    """Returns modules by time on device and host, the longest first."""
    if any(True for _ in trace.slices("module")):
        return _rows(trace, launched, "module", lambda call: call.name, "module")
    return _rows(trace, launched, "python_function", _called_module, "module")


def line_rows(trace: Trace, launched: Iterable[Launch]) -> list[OriginRow]:
    """Returns Python calls and layers' lines by time on device and host, the longest first."""
    return _rows(trace, launched, "python_function", _called_line, "line")


def has_python_calls(trace: Trace) -> bool:
    """Whether the trace was recorded with `--stacks`."""
    return any(True for _ in trace.slices("python_function"))


def _rows(
    trace: Trace,
    launched: Iterable[Launch],
    category: str,
    name_of: Callable[[SliceRef], str],
    layer_arg: str,
) -> list[OriginRow]:
    calls: Counter[str] = Counter()
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    kinds: dict[str, str] = {}
    for call in trace.slices(category):
        name = name_of(call)
        if not name:
            continue
        around = [name_of(other) for other in call.ancestors() if other.category == category]
        outer = [other for other in around if other]
        calls[name] += 1
        own[name] += call.duration_ns
        if name not in outer:
            whole[name] += call.duration_ns
        if outer:
            own[outer[0]] -= call.duration_ns
        kinds.setdefault(name, str(call.args.get("class", "")))
    device: Counter[str] = Counter()
    for launch in launched:
        names = {name_of(around) for around in launch.causes() if around.category == category}
        for name in names - {""}:
            device[name] += launch.program.duration_ns
    layers: Counter[str] = Counter()
    layered: Counter[str] = Counter()
    for layer in trace.slices("layer"):
        name = str(layer.args.get(layer_arg, ""))
        if name:
            layers[name] += 1
            layered[name] += layer_ns(layer)
    rows = [
        OriginRow(
            name,
            kinds.get(name, ""),
            calls[name],
            own[name],
            whole[name],
            device[name],
            layers[name],
            layered[name],
        )
        for name in {*calls, *layers}
    ]
    return sorted(
        rows,
        key=lambda row: (-max(row.layer_ns, row.device_ns), -row.self_ns, row.name),
    )


def _called_module(call: SliceRef) -> str:
    name = call.name
    return name.removeprefix(_MODULE_CALL) if name.startswith(_MODULE_CALL) else ""


def _called_line(call: SliceRef) -> str:
    return call.name if _OWN_LINE.fullmatch(call.name) else ""
