"""Charts: figures and bars drawn by matplotlib (the extra `plot` of each package).

Figures use matplotlib's objects, Agg and a separate style: pyplot, its backend and the user's
settings are unchanged.
"""

from __future__ import annotations

import importlib.util
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "INK",
    "PALETTE",
    "Chart",
    "Panel",
    "check_matplotlib",
    "draw_bars",
    "make_figure",
    "own_style",
]

INK = "#7a7a7a"  # reads on light and on dark pages
PALETTE = ("#3f51b5", "#e57373", "#26a69a", "#ffa726", "#8d6e63", "#78909c", "#ab47bc", "#9ccc65")

_UNITS_PER_INCH = 96  # CSS's pixels
_PNG_SCALE = 2  # PNG pixels per unit
_STYLE = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",  # keep text as text, for search and screen readers
    "svg.hashsalt": "npu",  # reproducible files
    "text.color": INK,
    "text.parse_math": False,  # names may hold $
    "xtick.color": INK,
    "ytick.color": INK,
}
_WIDTH, _ROW, _PANEL = 760, 18, 44
_GAP = 0.55  # between groups, in rows


@dataclass(frozen=True)
class Panel:
    """Bars under one heading."""

    title: str  # the quantity that the bars show, with its unit
    # Group -> series -> value; a series that a group lacks gets no bar.
    groups: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Chart:
    """A finished figure."""

    figure: Figure  # by make_figure
    title: str  # alternative text
    # Tooltips of an SVG's artists with the ids `hint-0`, `hint-1` and so on.
    hints: Sequence[str] = ()

    def svg(self) -> str:
        """Returns the chart as an `<svg>` element, which is also a valid file."""
        stream = io.StringIO()
        about = {"Title": self.title, "Date": None, "Creator": None, "Format": None, "Type": None}
        with own_style():
            self.figure.savefig(stream, format="svg", metadata=about)
        text = stream.getvalue()
        return re.sub(r'<g id="hint-(\d+)">', self._with_hint, text[text.index("<svg") :])

    def png(self) -> bytes:
        """Returns the chart as a PNG on white, with two pixels for a unit."""
        stream = io.BytesIO()
        with own_style():
            self.figure.savefig(
                stream,
                format="png",
                dpi=_UNITS_PER_INCH * _PNG_SCALE,
                facecolor="white",
                metadata={"Title": self.title, "Software": None},
            )
        return stream.getvalue()

    def _with_hint(self, start: re.Match[str]) -> str:
        return f"{start[0]}<title>{escape(self.hints[int(start[1])])}</title>"


def check_matplotlib(package: str, error: Callable[..., Exception]) -> None:
    """Raises [plot-library], of the class `error`, if matplotlib is missing.

    Call it before computing the result to draw. The package's extra `plot` installs matplotlib.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise error(
            "plot: matplotlib must be installed, got none. Install it: "
            f"pip install '{package}[plot]'.",
            code="plot-library",
        )


@contextmanager
def own_style() -> Iterator[None]:
    """Applies our charts' matplotlib settings in the body, then restores the previous ones."""
    from matplotlib import style

    with style.context(["default", _STYLE]):
        yield


def make_figure(width: float, height: float, title: str) -> Figure:
    """Returns an empty figure of this size in pixels; call and fill it within own_style."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (width / _UNITS_PER_INCH, height / _UNITS_PER_INCH)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=11)
    return figure


def draw_bars(panels: Sequence[Panel], *, title: str) -> Chart:
    """Draws panels of horizontal bars in a column, each with a separate scale."""
    series = dict.fromkeys(
        name for panel in panels for bars in panel.groups.values() for name in bars
    )
    colours = {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(series)}
    rows = [max(_rows(panel), 1.0) for panel in panels]
    with own_style():
        height = 36 + sum(rows) * _ROW + len(rows) * _PANEL
        figure = make_figure(_WIDTH, height, title)
        if panels:
            places = figure.subplots(len(panels), 1, squeeze=False, height_ratios=rows)
            for axes, panel in zip(places[:, 0], panels, strict=True):
                _draw_panel(axes, panel, colours)
    return Chart(figure, title)


def _rows(panel: Panel) -> float:
    return sum(len(bars) + _GAP for bars in panel.groups.values()) - _GAP


def _draw_panel(axes: Axes, panel: Panel, colours: Mapping[str, str]) -> None:
    labels, values, places, fills = [], [], [], []
    y = 0.0
    for group, bars in panel.groups.items():
        for name, value in bars.items():
            labels.append(f"{group}, {name}" if group else name)
            values.append(value)
            places.append(y)
            fills.append(colours[name])
            y += 1
        y += _GAP
    lengths = [value if math.isfinite(value) else 0.0 for value in values]
    drawn = axes.barh(places, lengths, height=0.8, color=fills)
    texts = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values]
    axes.bar_label(drawn, texts, padding=4)
    axes.set_title(panel.title, loc="left", weight="bold", size=9)
    axes.set_yticks(places, labels)
    axes.tick_params(length=0)
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.set_xlim(0, max(lengths, default=0.0) or 1.0)
    axes.set_ylim(max(_rows(panel), 1.0) - 0.5, -0.5)
