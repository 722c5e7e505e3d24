"""Curves of memory: one panel each, the peak marked, and bars of who holds it.

Who holds it is answered by `npu_profiler.queries.memory`.
"""

from collections.abc import Sequence

from npu_profiler.pictures.picture import PALETTE, Picture
from npu_profiler.queries.memory import Peak
from npu_profiler.reading import Counter
from npu_profiler.tables.sparkline import bin_highest
from npu_profiler.tables.text import format_bytes, format_ms

__all__ = ["draw_memory"]

_WIDTH, _LEFT, _RIGHT = 960, 90, 20
_CHART, _TITLE, _AXIS = 180, 34, 30
_STEP = 2  # width of a part of a curve
_BAR, _MOST_BARS = 18, 8
_NAME_CHARS = 64
_BARS_LEFT, _SIZES = 520, 90
_CURVE, _MARK = PALETTE[0], PALETTE[1]


def draw_memory(curves: Sequence[tuple[Counter, Peak | None]]) -> Picture:
    """Draws curves below each other.

    Args:
        curves: Each with its peak, if it is known who holds it.
    """
    picture = Picture(_WIDTH, 0, "Memory over time")
    for counter, peak in curves:
        bottom = picture.height + _TITLE + _CHART
        _draw_curve(picture, counter, bottom)
        picture.height = bottom + _AXIS
        if peak is not None:
            _mark_peak(picture, peak, counter, bottom)
            _draw_holders(picture, peak)
        picture.height += 10
    return picture


def _draw_curve(picture: Picture, counter: Counter, bottom: float) -> None:
    start, end = counter.times[0], counter.times[-1]
    highest = max(*counter.values, 1.0)
    bins = (_WIDTH - _LEFT - _RIGHT) // _STEP
    values = bin_highest(counter.times, counter.values, start_ns=start, end_ns=end, bins=bins)
    top, right = bottom - _CHART, _LEFT + _STEP * len(values)
    picture.word(_LEFT, top - 14, f"{counter.process}: {counter.series}", is_bold=True)
    for part, value in enumerate(values):
        height = value / highest * _CHART
        picture.box(_LEFT + _STEP * part, bottom - height, _STEP, height, _CURVE)
    picture.line([(_LEFT, top), (_LEFT, bottom), (right, bottom)])
    picture.word(_LEFT - 6, top + 8, format_bytes(highest), anchor="end")
    picture.word(_LEFT - 6, bottom, "0", anchor="end")
    picture.word(_LEFT, bottom + 16, format_ms(start))
    picture.word(right, bottom + 16, format_ms(end), anchor="end")


def _mark_peak(picture: Picture, peak: Peak, counter: Counter, bottom: float) -> None:
    start, end = counter.times[0], counter.times[-1]
    share = (peak.time_ns - start) / max(end - start, 1)
    x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
    top = bottom - _CHART
    picture.line([(x, top), (x, bottom)], colour=_MARK, is_dashed=True)
    said = f"peak {format_bytes(peak.size_bytes)} at {peak.place.op}"[:_NAME_CHARS]
    if share > 0.5:
        picture.word(x - 6, top - 4, said, anchor="end")
    else:
        picture.word(x + 6, top - 4, said)


def _draw_holders(picture: Picture, peak: Peak) -> None:
    y = picture.height + 12
    picture.word(_LEFT, y, "the peak is held by what was allocated in")
    room = _WIDTH - _BARS_LEFT - _RIGHT - _SIZES
    for holder in peak.holders[:_MOST_BARS]:
        y += _BAR
        length = holder.size_bytes / max(peak.size_bytes, 1) * room
        name = holder.place.op + (f" in {holder.place.within}" if holder.place.within else "")
        picture.word(_BARS_LEFT - 8, y + 2, name[:_NAME_CHARS], anchor="end")
        picture.box(_BARS_LEFT, y - 8, length, _BAR - 4, _CURVE)
        picture.word(_BARS_LEFT + length + 6, y + 2, format_bytes(holder.size_bytes))
    picture.height = y + 12
