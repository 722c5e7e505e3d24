"""Layers of a trace, with their time, operations, bytes, and roof."""

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from npu_profiler.errors import TraceError
from npu_profiler.reading import SliceRef, Trace
from npu_profiler.roofline.layer_cost import Array, costs_of_layers
from npu_profiler.roofline.peaks import Peaks

__all__ = ["LayerRuns", "Roof", "RoofTotal", "collect_layers", "find_roofs", "sum_roofs"]

_STEPS = ("prefill", "decode")
_SPELLINGS = {"fp32": "f32", "fp16": "f16"}


@dataclass(slots=True)
class LayerRuns:
    """The recorded runs of one layer."""

    program: str  # name of the program
    step: str  # "prefill" or "decode" if it ran within one; otherwise empty
    name: str  # name of the layer
    kind: str  # its type: "FullyConnected"
    precision: str  # precision: "bf16"; empty if unknown
    module: str = ""  # path of its torch module; empty if unknown
    times_ns: list[int] = field(default_factory=list)  # of each run
    flops: list[float | None] = field(default_factory=list)  # of each run; None if unknown
    sizes_bytes: list[float | None] = field(default_factory=list)  # of each run; None if unknown


@dataclass(frozen=True, slots=True)
class Roof:
    """A layer with its roof; amounts are per run."""

    layer: LayerRuns  # number of runs
    time_ns: float  # the median
    flops: float | None  # the mean; None if unknown
    size_bytes: float | None  # the mean; None if unknown
    # Time of the arithmetic at the peak of its precision; None if unknown.
    compute_ns: float | None
    memory_ns: float | None  # time of the bytes at the peak of the memory; None if unknown

    @property
    def roof_ns(self) -> float | None:
        """The least time that the device needs for it."""
        if self.compute_ns is None or self.memory_ns is None:
            return None
        return max(self.compute_ns, self.memory_ns)

    @property
    def share(self) -> float | None:
        """Fraction of the roof that it reaches; above 1 if its data came from a cache."""
        roof_ns = self.roof_ns
        return roof_ns / self.time_ns if roof_ns and self.time_ns else None

    @property
    def bound(self) -> str:
        """The limiting resource: "memory" or "compute"; "unknown" without a roof."""
        if self.compute_ns is None or self.memory_ns is None:
            return "unknown"
        if self.compute_ns == self.memory_ns == 0:
            return "nothing"
        return "compute" if self.compute_ns > self.memory_ns else "memory"

    @property
    def intensity(self) -> float | None:
        """Operations per byte."""
        if self.flops is None or not self.size_bytes:
            return None
        return self.flops / self.size_bytes


@dataclass(frozen=True, slots=True)
class RoofTotal:
    """Totals of several layers; amounts are per run."""

    layers: int  # number of layers
    time_ns: float  # of all layers
    flops: float  # of layers with known operations
    size_bytes: float  # of layers with known bytes
    roofed_ns: float  # time of layers with a roof
    roof_ns: float  # sum of the roofs
    memory_ns: float  # time of memory-bound layers

    @property
    def share(self) -> float | None:
        """Fraction of the roof that layers with a roof reach."""
        return self.roof_ns / self.roofed_ns if self.roofed_ns and self.roof_ns else None


def collect_layers(trace: Trace) -> list[LayerRuns]:
    """Groups runs by layer; prefill and decode of a program are separate.

    Raises [trace-no-layers], or [trace-no-shapes] if inputs and outputs were not recorded.
    """
    step_at = _StepFinder(trace)
    found: dict[tuple[str, str, str, str], LayerRuns] = {}
    has_layers = has_shapes = False
    for item, inputs, cost in costs_of_layers(trace):
        has_layers = True
        has_shapes = has_shapes or bool(item.args.get("inputs"))
        program = item.parent.name if item.parent is not None else ""
        args = item.args
        kind = str(args.get("type") or "")
        step = step_at(item.start_ns)
        layer = found.get((program, step, item.name, kind))
        if layer is None:
            precision = _precision(args, inputs)
            module = str(args.get("module") or "")
            layer = LayerRuns(program, step, item.name, kind, precision, module)
            found[program, step, item.name, kind] = layer
        layer.times_ns.append(_time_ns(item, args))
        layer.flops.append(cost.flops)
        layer.sizes_bytes.append(cost.size_bytes)
    _check(trace, has_layers=has_layers, has_shapes=has_shapes)
    return list(found.values())


def find_roofs(layers: Iterable[LayerRuns], peaks: Peaks) -> list[Roof]:
    """Computes the roof of each layer from the device's peaks; the longest layer first."""
    roofs = [_roof(layer, peaks) for layer in layers]
    return sorted(roofs, key=lambda roof: -roof.time_ns)


def sum_roofs(roofs: Sequence[Roof]) -> RoofTotal:
    """Returns the totals of layers."""
    roofed = [roof for roof in roofs if roof.roof_ns is not None]
    return RoofTotal(
        layers=len(roofs),
        time_ns=sum(roof.time_ns for roof in roofs),
        flops=sum(roof.flops or 0 for roof in roofs),
        size_bytes=sum(roof.size_bytes or 0 for roof in roofs),
        roofed_ns=sum(roof.time_ns for roof in roofed),
        roof_ns=sum(roof.roof_ns or 0 for roof in roofed),
        memory_ns=sum(roof.time_ns for roof in roofed if roof.bound == "memory"),
    )


def _check(trace: Trace, *, has_layers: bool, has_shapes: bool) -> None:
    if not has_layers:
        raise TraceError(
            f"{trace.path}: the trace must have layers, got none. Record it with trace --layers.",
            code="trace-no-layers",
        )
    if not has_shapes:
        raise TraceError(
            f"{trace.path}: layers must have recorded inputs and outputs, got none. Record it "
            "again with this npu-runtime, on a device whose driver reports them.",
            code="trace-no-shapes",
        )


class _StepFinder:
    """Finds the step of npu-llm at a time."""

    def __init__(self, trace: Trace) -> None:
        spans = sorted(trace.slices(*_STEPS), key=lambda one: one.start_ns)
        self._starts = [one.start_ns for one in spans]
        self._ends = [one.end_ns for one in spans]
        self._names = [one.category for one in spans]

    def __call__(self, time_ns: int) -> str:
        at = bisect_right(self._starts, time_ns) - 1
        return self._names[at] if at >= 0 and time_ns < self._ends[at] else ""


def _time_ns(item: SliceRef, args: Mapping[str, object]) -> int:
    """The time reported by the device; the slice may be shorter."""
    told_us = args.get("duration_us")
    return told_us * 1000 if isinstance(told_us, int) else item.duration_ns


def _precision(args: Mapping[str, object], inputs: Sequence[Array]) -> str:
    """The kernel's precision, unless it is an integer type for floating-point data (Select).

    Matrix products of a kernel program quantize their inputs if the weights are integers.
    """
    told = str(args.get("precision") or "")
    if args.get("type") == "Linear":
        return told
    told = _SPELLINGS.get(told, told)
    of_inputs = next((array.dtype for array in inputs if array.is_float), "")
    return told if told.startswith(("f", "bf")) or not of_inputs else of_inputs


def _roof(layer: LayerRuns, peaks: Peaks) -> Roof:
    flops, size_bytes = _mean(layer.flops), _mean(layer.sizes_bytes)
    compute_ns: float | None = None
    if flops == 0:
        compute_ns = 0.0
    elif flops is not None and layer.precision in peaks.flops_per_s:
        compute_ns = flops / peaks.flops_per_s[layer.precision] * 1e9
    return Roof(
        layer,
        statistics.median(layer.times_ns),
        flops,
        size_bytes,
        compute_ns,
        None if size_bytes is None else size_bytes / peaks.bytes_per_s * 1e9,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of known values; dynamic sizes are not read in every run."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
