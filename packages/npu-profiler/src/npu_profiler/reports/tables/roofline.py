"""The roofline as tables: totals by program and step, by type of layer, and the layers."""

from collections.abc import Iterable, Mapping, Sequence

from npu_profiler.reports.tables.model import Column, Table
from npu_profiler.reports.tables.text import own_name
from npu_profiler.roofline.layers import Roof, RoofTotal, sum_roofs

__all__ = ["by_kind", "by_layer", "by_program", "unknown_kinds"]

_AMOUNTS = (
    Column("time_ns", "ms", "ns"),
    Column("time_share", "of time", "share"),
    Column("flops", "MFLOP", "number"),
    Column("size_bytes", "bytes", "bytes"),
    Column("intensity", "FLOP/B", "number"),
    Column("gflops_per_s", "GFLOP/s", "number"),
    Column("gbytes_per_s", "GB/s", "number"),
    Column("roof_share", "of roof", "roof"),
)


def by_program(roofs: Sequence[Roof]) -> Table:
    """One row for each program and step, and one for all."""
    groups: dict[tuple[str, str], list[Roof]] = {}
    for roof in roofs:
        groups.setdefault((roof.layer.program, roof.layer.step), []).append(roof)
    whole = sum_roofs(roofs)
    rows = [
        [
            program,
            step,
            max(len(roof.layer.times_ns) for roof in group),
            *_total_row(sum_roofs(group), whole),
        ]
        for (program, step), group in sorted(groups.items(), key=_longest_first)
    ]
    if len(rows) > 1:
        rows.append(["total", "", None, *_total_row(whole, whole)])
    columns = [
        Column("program", "program"),
        Column("step", "step"),
        Column("runs", "runs", "count"),
        Column("layers", "layers", "count"),
        *_AMOUNTS,
        Column("memory_share", "by memory", "share"),
    ]
    return Table("programs, of one run each", columns, rows)


def by_kind(roofs: Sequence[Roof]) -> Table:
    """One row for each type of layer, the one that takes longest first."""
    groups: dict[str, list[Roof]] = {}
    for roof in roofs:
        groups.setdefault(roof.layer.kind, []).append(roof)
    whole = sum_roofs(roofs)
    ordered = sorted(groups.items(), key=_longest_first)
    rows = [[kind, *_total_row(sum_roofs(group), whole)] for kind, group in ordered]
    columns = [
        Column("type", "type"),
        Column("layers", "layers", "count"),
        *_AMOUNTS,
        Column("memory_share", "by memory", "share"),
    ]
    return Table("types of layers", columns, rows)


def by_layer(roofs: Sequence[Roof]) -> Table:
    """One row for each layer, the one that takes longest first."""
    whole_ns = sum(roof.time_ns for roof in roofs)
    has_steps = any(roof.layer.step for roof in roofs)
    has_modules = any(roof.layer.module for roof in roofs)
    rows = []
    for roof in roofs:
        layer = roof.layer
        rows.append(
            [
                *([layer.module] if has_modules else []),
                own_name(layer.name, layer.module),
                *([layer.step] if has_steps else []),
                layer.kind,
                layer.precision,
                roof.time_ns,
                roof.time_ns / whole_ns if whole_ns else None,
                None if roof.flops is None else roof.flops / 1e6,
                roof.size_bytes,
                roof.intensity,
                _rate(roof.flops, roof.time_ns),
                _rate(roof.size_bytes, roof.time_ns),
                roof.share,
                roof.bound,
            ]
        )
    columns = [
        *([Column("module", "module")] if has_modules else []),
        Column("layer", "layer"),
        *([Column("step", "step")] if has_steps else []),
        Column("type", "type"),
        Column("precision", "in"),
        *_AMOUNTS,
        Column("bound", "bound by"),
    ]
    return Table("layers", columns, rows)


def unknown_kinds(roofs: Iterable[Roof]) -> Mapping[str, tuple[int, float]]:
    """Types of layers without a roof: how many layers, and their time in nanoseconds."""
    found: dict[str, tuple[int, float]] = {}
    for roof in roofs:
        if roof.roof_ns is None:
            count, time_ns = found.get(roof.layer.kind, (0, 0.0))
            found[roof.layer.kind] = (count + 1, time_ns + roof.time_ns)
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def _longest_first(group: tuple[object, Sequence[Roof]]) -> float:
    return -sum(roof.time_ns for roof in group[1])


def _total_row(total: RoofTotal, whole: RoofTotal) -> list[float | int | None]:
    return [
        total.layers,
        total.time_ns,
        total.time_ns / whole.time_ns if whole.time_ns else None,
        total.flops / 1e6,
        total.size_bytes,
        total.flops / total.size_bytes if total.size_bytes else None,
        _rate(total.flops, total.time_ns),
        _rate(total.size_bytes, total.time_ns),
        total.share,
        total.memory_ns / total.time_ns if total.time_ns else None,
    ]


def _rate(amount: float | None, time_ns: float) -> float | None:
    """Billions a second."""
    return amount / time_ns if amount is not None and time_ns else None
