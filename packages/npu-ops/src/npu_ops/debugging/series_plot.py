"""Lines over time as a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npu_command.charts import PALETTE, Chart, make_figure, own_style

__all__ = ["Panel", "draw_series"]

_WIDTH, _HEIGHT = 760, 165


@dataclass(frozen=True)
class Panel:
    """Lines with one scale.

    Attributes:
        title: what they show, with the unit.
        lines: name -> a value for each time.
    """

    title: str
    lines: Mapping[str, Sequence[float]]


def draw_series(times_s: Sequence[float], panels: Sequence[Panel], *, title: str) -> Chart:
    """Draws panels below each other over one axis of time.

    Args:
        times_s: seconds, ascending, one for each value.
        panels: from top to bottom, one or more.
        title: the chart's.
    """
    with own_style():
        figure = make_figure(_WIDTH, 40 + _HEIGHT * len(panels), title)
        places = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        for axes, panel in zip(places, panels, strict=True):
            for colour, (name, line) in zip(PALETTE, panel.lines.items(), strict=False):
                axes.plot(times_s, line, color=colour, label=name, linewidth=1)
            axes.set_title(panel.title, loc="left", weight="bold", size=9)
            most = max((max(line, default=0.0) for line in panel.lines.values()), default=0.0)
            axes.set_ylim(0, 1.05 * most or 1.0)
            axes.grid(axis="y", alpha=0.3)
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
        places[-1].set_xlim(0, max(times_s, default=0.0) or 1.0)
        places[-1].set_xlabel("s")
    return Chart(figure, title)
