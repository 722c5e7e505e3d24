"""Horizontal bars in panels, for sweeps. The look is that of npu-llm's benchmark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npu_profiler.pictures.picture import PALETTE, Picture

__all__ = ["Panel", "draw_bars"]

_WIDTH, _ROW, _GAP = 760, 18, 10
_LABELS, _VALUES = 210, 90  # room left and right of the bars


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars under one heading.

    Attributes:
        title: What the bars have in common, with their unit.
        groups: Values by group and series; a series that a group lacks gets no bar.
        limit: A value that a line marks; None for no line.
        limit_title: What that value is.
    """

    title: str
    groups: Mapping[str, Mapping[str, float]]
    limit: float | None = None
    limit_title: str = ""


def draw_bars(panels: Sequence[Panel], *, title: str) -> Picture:
    """Draws panels below each other, each with its own scale and each series in one colour."""
    series = list(
        dict.fromkeys(name for panel in panels for bars in panel.groups.values() for name in bars)
    )
    colours = {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(series)}
    picture = Picture(_WIDTH, 0, title)
    picture.word(0, 20, title, is_bold=True, size=15)
    y = 30.0
    for panel in panels:
        y = _draw_panel(picture, panel, colours, y + 24)
    picture.height = y + 6
    return picture


def _draw_panel(picture: Picture, panel: Panel, colours: Mapping[str, str], y: float) -> float:
    picture.word(0, y, panel.title, is_bold=True)
    y += 10
    values = [value for bars in panel.groups.values() for value in bars.values()]
    top = max([*values, panel.limit or 0.0], default=0.0) or 1.0
    room = _WIDTH - _LABELS - _VALUES
    first = y
    for group, bars in panel.groups.items():
        for name, value in bars.items():
            length = value / top * room
            picture.word(_LABELS - 8, y + 13, f"{group}, {name}", anchor="end")
            picture.box(_LABELS, y + 2, length, _ROW - 4, colours[name])
            text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            picture.word(_LABELS + length + 6, y + 13, text)
            y += _ROW
        y += _GAP
    if panel.limit is not None:
        x = _LABELS + panel.limit / top * room
        picture.line([(x, first - 4), (x, y - _GAP)], is_dashed=True)
        picture.word(x - 4, first - 8, panel.limit_title, anchor="end")
    return y
