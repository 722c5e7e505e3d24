"""Layers of programs, each on its own or by their kind.

Layers are sampled: shares are of the runs that told them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from npu_profiler.queries.programs import layer_ns
from npu_profiler.reading import SliceRef, Trace
from npu_profiler.recording.schedule import ENGINES
from npu_profiler.roofline.costs import costs_of_layers
from npu_profiler.roofline.layer_cost import Cost

__all__ = ["LayerRow", "layer_kinds", "layer_rows", "layered_program_ns", "sum_known"]


@dataclass(frozen=True, slots=True)
class LayerRow:
    """All recorded runs of one layer, or of all layers of one kind.

    Attributes:
        name: of the layer; empty for a kind.
        program: whose layer it is; empty for a kind.
        module: path of the torch module that it comes from; empty where that is not known.
        kind: OpenVINO's type of it: "FullyConnected".
        implementation: which kernel of the device computes it.
        layers: how many different layers these are.
        flops: of those of its runs whose operations are known; None if there are none.
        moved_bytes: read and written in those of its runs whose shapes are known; None without.
        line: Python line that it comes from; empty where that is not known.
        engine_ns: time of each of `ENGINES`, of an estimate; empty without.
    """

    name: str
    program: str
    module: str
    kind: str
    precision: str
    implementation: str
    layers: int
    calls: int
    total_ns: int
    flops: float | None
    moved_bytes: float | None
    line: str
    engine_ns: Mapping[str, int]


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
    """The time of those runs of programs that told their layers."""
    runs = {layer.parent for layer in trace.slices("layer")}
    return sum(run.duration_ns for run in runs if run is not None)


def sum_known(values: Iterable[float | None]) -> float | None:
    """The sum of those values that are known; None if none is."""
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
