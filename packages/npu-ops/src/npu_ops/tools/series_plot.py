"""Lines over time as SVG, so that a plot needs no plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Panel", "draw_series"]

_WIDTH, _HEIGHT, _LEFT, _GAP = 760, 130, 70, 46
_COLOURS = ("#3f51b5", "#e57373", "#78909c")


@dataclass(frozen=True)
class Panel:
    """Lines with one scale.

    Attributes:
        title: what they show, with the unit.
        lines: name -> a value for each time.
    """

    title: str
    lines: Mapping[str, Sequence[float]]


def draw_series(times_s: Sequence[float], panels: Sequence[Panel], *, title: str) -> str:
    """Draws panels below each other over one axis of time.

    Args:
        times_s: seconds, ascending, one for each value.
        panels: from top to bottom.
        title: the picture's.

    Returns:
        The SVG document.
    """
    end = max(times_s, default=0.0) or 1.0
    width = _WIDTH - _LEFT - 10
    parts = [_text(0, 18, title, "bold")]
    top = 30
    for panel in panels:
        most = max((max(line, default=0.0) for line in panel.lines.values()), default=0.0) or 1.0
        parts.append(_text(_LEFT, top + 14, panel.title, "bold"))
        top += 22
        for share in (0.0, 0.5, 1.0):
            y = top + _HEIGHT * (1 - share)
            parts.append(f'<path d="M{_LEFT} {y:.1f}h{width}" stroke="#8884"/>')
            parts.append(_text(_LEFT - 6, y + 4, f"{most * share:.3g}", anchor="end"))
        for number, (name, line) in enumerate(panel.lines.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            points = " ".join(
                f"{_LEFT + time / end * width:.1f},{top + _HEIGHT * (1 - value / most):.1f}"
                for time, value in zip(times_s, line, strict=True)
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
            parts.append(
                _text(_LEFT + width, top - 8 - 14 * number, name, anchor="end", fill=colour)
            )
        top += _HEIGHT + _GAP
    parts.append(_text(_LEFT, top - 24, "0 s"))
    parts.append(_text(_LEFT + width, top - 24, f"{end:.1f} s", anchor="end"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" role="img" '
        f'font-family="sans-serif" font-size="12">\n<title>{escape(title)}</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(
    x: float,
    y: float,
    text: str,
    weight: str = "normal",
    *,
    anchor: str = "start",
    fill: str = "#888",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{fill}">{escape(text)}</text>'
    )
