"""Roofline tables by program and step, by layer type and by layer; and the chart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from npu_command.charts import INK, PALETTE, Chart, make_figure, own_style
from npu_profiler.reports.tables import Column, Table, own_name
from npu_profiler.roofline.layers import Roof, RoofTotal, sum_roofs
from npu_profiler.roofline.peaks import Peaks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["by_kind", "by_layer", "by_program", "draw_roofline", "unknown_kinds"]

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
    """One row per program and step, and a total."""
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
    """One row per layer type, the longest first."""
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
    """One row per layer, the longest first."""
    whole_ns = sum(roof.time_ns for roof in roofs)
    has_steps = any(roof.layer.step for roof in roofs)
    has_modules = any(roof.layer.module for roof in roofs)
    columns = [
        *([Column("module", "module")] if has_modules else []),
        Column("layer", "layer"),
        *([Column("step", "step")] if has_steps else []),
        Column("type", "type"),
        Column("precision", "in"),
        *_AMOUNTS,
        Column("bound", "bound by"),
    ]
    return Table.of(
        "layers",
        columns,
        roofs,
        module=lambda roof: roof.layer.module,
        layer=lambda roof: own_name(roof.layer.name, roof.layer.module),
        step=lambda roof: roof.layer.step,
        type=lambda roof: roof.layer.kind,
        precision=lambda roof: roof.layer.precision,
        time_share=lambda roof: roof.time_ns / whole_ns if whole_ns else None,
        flops=lambda roof: None if roof.flops is None else roof.flops / 1e6,
        gflops_per_s=lambda roof: _rate(roof.flops, roof.time_ns),
        gbytes_per_s=lambda roof: _rate(roof.size_bytes, roof.time_ns),
        roof_share=lambda roof: roof.share,
    )


def unknown_kinds(roofs: Iterable[Roof]) -> Mapping[str, tuple[int, float]]:
    """Returns the layer types without a roof: number of layers, and time in nanoseconds."""
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
    """Billions per second."""
    return amount / time_ns if amount is not None and time_ns else None


_WIDTH, _HEIGHT = 900, 520
_MOST_KINDS = len(PALETTE) - 1
_LEAST_SIZE, _MOST_SIZE = 3.0, 24.0  # size of a dot in points
_APART = 0.035  # minimum distance of two roof labels, relative to the height


def draw_roofline(roofs: Sequence[Roof], peaks: Peaks, *, title: str) -> Chart:
    """Draws layers with known operations and bytes as dots under the roofs, sized by time.

    Other layers are counted below the chart. The memory roof is a slope, the roof of each precision
    a horizontal line.
    """
    shown = [roof for roof in roofs if roof.flops and roof.size_bytes and roof.time_ns]
    shown.sort(key=lambda roof: -roof.time_ns)
    levels = {name: rate / 1e9 for name, rate in peaks.flops_per_s.items()}
    slope = peaks.bytes_per_s / 1e9
    corners = [(level / slope, level) for level in levels.values()]
    points = [*map(_point, shown), *corners, (1.0, slope)]
    with own_style():
        figure = make_figure(_WIDTH, _HEIGHT, title)
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(_decades([x for x, _ in points]))
        axes.set_ylim(_decades([y for _, y in points]))
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
        axes.set_xlabel("operations per byte (FLOP/B)")
        axes.set_ylabel("GFLOP/s")
        _draw_roofs(axes, levels, slope)
        hints = _draw_layers(axes, shown)
        if hints:
            figure.legend(loc="outside right lower")
        if len(shown) < len(roofs):
            figure.supxlabel(_left_out(roofs, shown), x=0.01, ha="left", size=9)
    return Chart(figure, title, hints)


def _draw_roofs(axes: Axes, levels: Mapping[str, float], slope: float) -> None:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    start = max(left, low / slope)
    end = min(max([*levels.values(), slope]) / slope, right)
    axes.plot([start, end], [start * slope, end * slope], color=INK, linewidth=1)
    axes.annotate(
        f"memory {slope:,.1f} GB/s",
        (start, start * slope),
        xytext=(14, 4),
        textcoords="offset points",
    )
    previous = math.inf
    for name, level in sorted(levels.items(), key=lambda item: -item[1]):
        axes.plot([min(level / slope, right), right], [level, level], color=INK, linewidth=1)
        # Two precisions may have the same peak: their labels go below each other.
        previous = min(math.log(level / low) / math.log(high / low), previous - _APART)
        axes.annotate(
            f"{name} {level:,.0f} GFLOP/s",
            (1.01, previous),
            xycoords="axes fraction",
            va="center",
        )


def _draw_layers(axes: Axes, shown: Sequence[Roof]) -> list[str]:
    """Draws a dot per layer, the longest first; returns the labels."""
    times: dict[str, float] = {}
    for roof in shown:
        times[roof.layer.kind] = times.get(roof.layer.kind, 0) + roof.time_ns
    kinds = sorted(times, key=lambda kind: -times[kind])
    colours = {kind: PALETTE[min(index, _MOST_KINDS)] for index, kind in enumerate(kinds)}
    hints: list[str] = []
    for roof in shown:
        size = max(_MOST_SIZE * math.sqrt(roof.time_ns / shown[0].time_ns), _LEAST_SIZE)
        share = "" if roof.share is None else f", {roof.share:.0%} of the roof"
        axes.plot(
            *([value] for value in _point(roof)),
            "o",
            markersize=size,
            markeredgewidth=0,
            alpha=0.75,
            clip_on=False,
            color=colours[roof.layer.kind],
            gid=f"hint-{len(hints)}",
        )
        hints.append(
            f"{roof.layer.name} ({roof.layer.kind}) {roof.layer.step}: "
            f"{roof.time_ns / 1e6:.3f} ms{share}, bound by {roof.bound}"
        )
    for kind in kinds[:_MOST_KINDS]:
        axes.plot([], [], "o", markeredgewidth=0, color=colours[kind], label=_short(kind))
    if len(kinds) > _MOST_KINDS:
        others = f"{len(kinds) - _MOST_KINDS} others"
        axes.plot([], [], "o", markeredgewidth=0, color=PALETTE[-1], label=others)
    return hints


def _left_out(roofs: Sequence[Roof], shown: Sequence[Roof]) -> str:
    time_ns = sum(roof.time_ns for roof in roofs)
    rest_ns = time_ns - sum(roof.time_ns for roof in shown)
    return (
        f"not drawn: {len(roofs) - len(shown):,} layers without operations or whose operations "
        f"are not known ({rest_ns / max(time_ns, 1):.1%} of the time)"
    )


def _point(roof: Roof) -> tuple[float, float]:
    flops, size_bytes = roof.flops or 0.0, roof.size_bytes or 1.0
    return flops / size_bytes, flops / roof.time_ns


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Returns the powers of ten around the values."""
    least, most = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**least, 10.0 ** max(most, least + 1)


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:22]}..."
