"""Curves of memory as SVG: one panel each, the peak marked, and bars of who holds it.

Who holds it is answered by `npu_profiler.queries.memory`.
"""

from collections.abc import Sequence
from html import escape

from npu_profiler.queries.memory import Peak
from npu_profiler.reading import Counter
from npu_profiler.tables.sparkline import bin_highest
from npu_profiler.tables.text import format_bytes, format_ms

__all__ = ["draw_memory"]

_WIDTH, _LEFT, _RIGHT = 960, 90, 20
_CHART, _TITLE, _AXIS = 180, 34, 30
_BAR, _MOST_BARS = 18, 8
_NAME_CHARS = 64
_BARS_LEFT = 520
_BLUE, _ORANGE, _GREY = "#3b6fb6", "#d9822b", "#888888"


def draw_memory(curves: Sequence[tuple[Counter, Peak | None]]) -> str:
    """Returns the picture.

    Args:
        curves: Each with its peak, if it is known who holds it.
    """
    parts: list[str] = []
    top = 0
    for counter, peak in curves:
        panel, height = _panel(counter, peak, top)
        parts += panel
        top += height
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" '
        f'width="{_WIDTH}" height="{top}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{_WIDTH}" height="{top}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _panel(counter: Counter, peak: Peak | None, top: int) -> tuple[list[str], int]:
    start, end = counter.times[0], counter.times[-1]
    width = _WIDTH - _LEFT - _RIGHT
    highest = max(*counter.values, 1.0)
    bottom = top + _TITLE + _CHART
    heights = bin_highest(
        counter.times, counter.values, start_ns=start, end_ns=end, bins=width // 2
    )
    steps = []
    for part, value in enumerate(heights):
        y = bottom - value / highest * _CHART
        x = _LEFT + 2 * part
        steps += [f"{x},{y:.1f}", f"{x + 2},{y:.1f}"]
    outline = " ".join(steps)
    right = _LEFT + 2 * len(heights)
    lines = [
        _text(_LEFT, top + 20, f"{counter.process}: {counter.series}", weight="bold"),
        (
            f'<polygon fill="{_BLUE}" fill-opacity="0.3" stroke="{_BLUE}" '
            f'points="{_LEFT},{bottom} {outline} {right},{bottom}"/>'
        ),
        f'<path d="M{_LEFT} {bottom - _CHART}V{bottom}H{right}" fill="none" stroke="{_GREY}"/>',
        _text(_LEFT - 6, bottom - _CHART + 8, format_bytes(highest), anchor="end"),
        _text(_LEFT - 6, bottom, "0", anchor="end"),
        _text(_LEFT, bottom + 16, format_ms(start)),
        _text(right, bottom + 16, format_ms(end), anchor="end"),
    ]
    height = _TITLE + _CHART + _AXIS
    if peak is not None:
        lines += _peak_mark(peak, counter, bottom)
        bars = _bars(peak, top + height)
        lines += bars
        height += 24 + _BAR * min(len(peak.holders), _MOST_BARS)
    return lines, height + 10


def _peak_mark(peak: Peak, counter: Counter, bottom: int) -> list[str]:
    start, end = counter.times[0], counter.times[-1]
    share = (peak.time_ns - start) / max(end - start, 1)
    x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
    is_late = share > 0.5
    said = f"peak {format_bytes(peak.size_bytes)} at {peak.place.op}"
    return [
        (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom - _CHART}" y2="{bottom}" '
            f'stroke="{_ORANGE}" stroke-dasharray="4 3"/>'
        ),
        _text(
            x - 6 if is_late else x + 6,
            bottom - _CHART - 4,
            said[:_NAME_CHARS],
            anchor="end" if is_late else "start",
        ),
    ]


def _bars(peak: Peak, top: int) -> list[str]:
    lines = [_text(_LEFT, top + 12, "the peak is held by what was allocated in")]
    room = _WIDTH - _BARS_LEFT - _RIGHT - 90
    for row, holder in enumerate(peak.holders[:_MOST_BARS]):
        y = top + 20 + row * _BAR
        share = holder.size_bytes / max(peak.size_bytes, 1)
        name = holder.place.op + (f" in {holder.place.within}" if holder.place.within else "")
        lines += [
            _text(_BARS_LEFT - 8, y + 12, name[:_NAME_CHARS], anchor="end"),
            (
                f'<rect x="{_BARS_LEFT}" y="{y + 2}" width="{share * room:.1f}" '
                f'height="{_BAR - 4}" fill="{_BLUE}"/>'
            ),
            _text(_BARS_LEFT + share * room + 6, y + 12, format_bytes(holder.size_bytes)),
        ]
    return lines


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="#222222">{escape(text)}</text>'
    )
