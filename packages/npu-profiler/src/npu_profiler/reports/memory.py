"""Memory charts: a panel per curve with its peak, and bars of the holders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from npu_command.charts import PALETTE, Chart, make_figure, own_style
from npu_profiler.queries.memory import Peak
from npu_profiler.reading import Counter
from npu_profiler.reports.tables import bin_highest, format_bytes, format_ms

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_memory"]

_WIDTH, _CURVE_HEIGHT, _BAR_HEIGHT, _HEADING = 960, 230, 18, 40
_BINS = 425
_MOST_BARS = 8
_NAME_CHARS = 64
_CURVE, _MARK = PALETTE[0], PALETTE[1]
_TITLE = "Memory over time"


def draw_memory(curves: Sequence[tuple[Counter, Peak | None]]) -> Chart:
    """Draws curves below each other, each with its peak and holders if known."""
    heights = []
    for _, peak in curves:
        heights.append(_CURVE_HEIGHT)
        if peak is not None:
            heights.append(_HEADING + _BAR_HEIGHT * len(peak.holders[:_MOST_BARS]))
    with own_style():
        figure = make_figure(_WIDTH, 36 + sum(heights), _TITLE)
        # Separate columns, so that long names of holders do not narrow the curves.
        parts = iter(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
        for counter, peak in curves:
            axes = next(parts).subplots()
            _draw_curve(axes, counter)
            if peak is not None:
                _mark_peak(axes, peak, counter)
                _draw_holders(next(parts).subplots(), peak)
    return Chart(figure, _TITLE)


def _draw_curve(axes: Axes, counter: Counter) -> None:
    start, end = counter.times[0], counter.times[-1]
    highest = max(*counter.values, 1.0)
    values = bin_highest(counter.times, counter.values, start_ns=start, end_ns=end, bins=_BINS)
    width = max(end - start, 1) / len(values)
    edges = [start + width * at for at in range(len(values) + 1)]
    axes.stairs(values, edges, fill=True, color=_CURVE)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, highest)
    axes.set_yticks([0, highest], ["0", format_bytes(highest)])
    axes.set_xticks([edges[0], edges[-1]], [format_ms(start), format_ms(end)])
    title = f"{counter.process}: {counter.series}"
    axes.set_title(title, loc="left", weight="bold", size=9, pad=18)  # above the marker of the peak


def _mark_peak(axes: Axes, peak: Peak, counter: Counter) -> None:
    start, end = counter.times[0], counter.times[-1]
    is_late = peak.time_ns - start > (end - start) / 2
    axes.axvline(peak.time_ns, color=_MARK, linestyle="--")
    axes.annotate(
        f"peak {format_bytes(peak.size_bytes)} at {peak.place.op}"[:_NAME_CHARS],
        (peak.time_ns, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if is_late else 4, 3),
        textcoords="offset points",
        ha="right" if is_late else "left",
    )


def _draw_holders(axes: Axes, peak: Peak) -> None:
    holders = peak.holders[:_MOST_BARS]
    names = [
        one.place.op + (f" in {one.place.within}" if one.place.within else "") for one in holders
    ]
    places = range(len(holders))
    drawn = axes.barh(places, [one.size_bytes for one in holders], height=0.8, color=_CURVE)
    axes.bar_label(drawn, [format_bytes(one.size_bytes) for one in holders], padding=4)
    axes.set_title("holders of the peak, by place of allocation", loc="left", size=9)
    axes.set_yticks(places, [name[:_NAME_CHARS] for name in names])
    axes.tick_params(length=0)
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.set_xlim(0, max(peak.size_bytes, 1))
    axes.set_ylim(max(len(holders), 1) - 0.5, -0.5)
