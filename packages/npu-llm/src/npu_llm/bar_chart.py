"""A small bar chart as SVG, so that a plot of a benchmark needs no plotting library.

What is measured and how it is grouped is npu_llm.bench's and the benchmarks' work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Panel", "draw_bars"]

_WIDTH, _ROW, _GAP = 760, 18, 10
_LABELS, _VALUES = 210, 90  # room left and right of the bars
_COLOURS = ("#3f51b5", "#90a4ae", "#78909c", "#b0bec5", "#a1887f", "#cfd8dc", "#8d6e63")


@dataclass(frozen=True)
class Panel:
    """Bars under one heading.

    Attributes:
        title: what the bars have in common, with their unit.
        groups: group -> series -> value; series that a group lacks get no bar.
    """

    title: str
    groups: Mapping[str, Mapping[str, float]]


def draw_bars(panels: Sequence[Panel], *, title: str) -> str:
    """Draws panels of horizontal bars below each other; each panel has its own scale.

    Args:
        panels: the first series that appears is drawn in the strongest colour.
        title: the picture's, also its name for those who do not see it.

    Returns:
        The SVG document, which reads on light and on dark pages.
    """
    series = list(
        dict.fromkeys(name for panel in panels for bars in panel.groups.values() for name in bars)
    )
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(series)}
    parts: list[str] = []
    y = 30
    for panel in panels:
        y += 24
        parts.append(_text(0, y, panel.title, weight="bold"))
        y += 10
        values = [value for bars in panel.groups.values() for value in bars.values()]
        top = max(values, default=0.0) or 1.0
        for group, bars in panel.groups.items():
            for name, value in bars.items():
                length = value / top * (_WIDTH - _LABELS - _VALUES)
                label = f"{group}, {name}" if group else name
                parts.append(_text(_LABELS - 8, y + 13, label, anchor="end"))
                parts.append(
                    f'<rect x="{_LABELS}" y="{y + 2}" width="{length:.1f}" height="{_ROW - 4}" '
                    f'rx="2" fill="{colours[name]}"/>'
                )
                parts.append(_text(_LABELS + length + 6, y + 13, _format(value)))
                y += _ROW
            y += _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 6}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="#888">\n<title>{escape(title)}</title>\n'
        + _text(0, 20, title, weight="bold", size=15)
        + "\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _format(value: float) -> str:
    """Three significant digits at least."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
