"""A curve as one line of text."""

from collections.abc import Sequence

__all__ = ["bin_highest", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"


def bin_highest(
    times: Sequence[int], values: Sequence[float], *, start_ns: int, end_ns: int, bins: int
) -> list[float]:
    """The highest value within each part of an interval; a curve keeps its value until the next.

    Args:
        times: of the samples, rising.
        values: of the samples.
        start_ns: begin of the interval; before the first sample the curve is 0.
        end_ns: end of the interval.
        bins: how many parts.
    """
    highest = [0.0] * bins
    width = max(end_ns - start_ns, 1) / bins
    latest = 0.0
    at = 0
    for part in range(bins):
        edge = start_ns + (part + 1) * width
        highest[part] = latest
        while at < len(times) and (times[at] < edge or part == bins - 1):
            latest = values[at]
            highest[part] = max(highest[part], latest)
            at += 1
    return highest


def sparkline(heights: Sequence[float]) -> str:
    """Blocks from 0 to the highest value."""
    top = max(heights, default=0.0)
    if top <= 0:
        return _BLOCKS[0] * len(heights)
    return "".join(_BLOCKS[min(int(value / top * 8), 7)] for value in heights)
