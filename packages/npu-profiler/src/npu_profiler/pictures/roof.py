"""The picture of a roofline: intensity to the right, arithmetic upwards, both in powers of ten."""

import math
from collections.abc import Sequence

from npu_profiler.pictures.picture import PALETTE, Picture
from npu_profiler.roofline.layers import Roof
from npu_profiler.roofline.peaks import Peaks

__all__ = ["draw_roofline"]

_WIDTH, _HEIGHT = 900, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 46, 56
_MOST_KINDS = len(PALETTE) - 1
_LEAST_RADIUS, _MOST_RADIUS = 2.0, 16.0


class _Scale:
    """Puts values on the paper; both axes cover whole powers of ten."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        xs, ys = zip(*points, strict=True)
        self.x0, self.x1 = _decades(xs)
        self.y0, self.y1 = _decades(ys)

    def x(self, value: float) -> float:
        part = (math.log10(value) - self.x0) / (self.x1 - self.x0)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        part = (math.log10(value) - self.y0) / (self.y1 - self.y0)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


def draw_roofline(roofs: Sequence[Roof], peaks: Peaks, *, title: str) -> Picture:
    """Draws layers that have operations and bytes as dots, as large as their time, under the roofs.

    Args:
        roofs: Layers; those without operations have no place here, and are counted below it.
        peaks: Of the device: a slope for the memory, a level for each precision.
        title: The picture's.
    """
    picture = Picture(_WIDTH, _HEIGHT, title)
    picture.word(0, 20, title, is_bold=True, size=15)
    shown = [roof for roof in roofs if roof.flops and roof.size_bytes and roof.time_ns]
    points = [(roof.flops / roof.size_bytes, roof.flops / roof.time_ns)
              for roof in shown if roof.flops and roof.size_bytes]  # fmt: skip
    levels = {name: rate / 1e9 for name, rate in peaks.flops_per_s.items()}
    slope = peaks.bytes_per_s / 1e9
    corners = [(level / slope, level) for level in levels.values()]
    scale = _Scale([*points, *corners, (1.0, slope)])
    _draw_axes(picture, scale)
    _draw_roofs(picture, scale, levels, slope)
    _draw_layers(picture, scale, shown)
    time_ns = sum(roof.time_ns for roof in roofs)
    rest_ns = time_ns - sum(roof.time_ns for roof in shown)
    if time_ns and len(shown) < len(roofs):
        picture.word(
            _LEFT,
            _HEIGHT - 6,
            f"not drawn: {len(roofs) - len(shown):,} layers without operations or whose operations "
            f"are not known ({rest_ns / time_ns:.1%} of the time)",
        )
    return picture


def _draw_axes(picture: Picture, scale: _Scale) -> None:
    left, right = scale.x(10**scale.x0), scale.x(10**scale.x1)
    top, bottom = scale.y(10**scale.y1), scale.y(10**scale.y0)
    for power in range(scale.x0, scale.x1 + 1):
        x = scale.x(10**power)
        picture.line([(x, top), (x, bottom)], colour="#88888844")
        picture.word(x, bottom + 16, f"{10**power:g}", anchor="middle")
    for power in range(scale.y0, scale.y1 + 1):
        y = scale.y(10**power)
        picture.line([(left, y), (right, y)], colour="#88888844")
        picture.word(left - 6, y + 4, f"{10**power:g}", anchor="end")
    picture.word((left + right) / 2, bottom + 34, "operations per byte (FLOP/B)", anchor="middle")
    picture.word(0, _TOP - 8, "GFLOP/s")


def _draw_roofs(picture: Picture, scale: _Scale, levels: dict[str, float], slope: float) -> None:
    right = 10.0**scale.x1
    top = max([*levels.values(), slope])
    start = max(10.0**scale.x0, 10.0**scale.y0 / slope)
    end = min(top / slope, right)
    picture.line([(scale.x(start), scale.y(start * slope)), (scale.x(end), scale.y(end * slope))])
    picture.word(scale.x(start) + 14, scale.y(start * slope) - 8, f"memory {slope:,.1f} GB/s")
    # Two precisions can reach the same: one word above the other.
    previous = -math.inf
    for name, level in sorted(levels.items(), key=lambda item: -item[1]):
        y = scale.y(level)
        picture.line([(scale.x(min(level / slope, right)), y), (scale.x(right), y)])
        at = max(y, previous + 13)
        picture.word(scale.x(right) + 6, at + 4, f"{name} {level:,.0f} GFLOP/s")
        previous = at


def _draw_layers(picture: Picture, scale: _Scale, shown: Sequence[Roof]) -> None:
    times: dict[str, float] = {}
    for roof in shown:
        times[roof.layer.kind] = times.get(roof.layer.kind, 0) + roof.time_ns
    kinds = sorted(times, key=lambda kind: -times[kind])
    colours = {
        kind: PALETTE[index] if index < _MOST_KINDS else PALETTE[-1]
        for index, kind in enumerate(kinds)
    }
    longest = max((roof.time_ns for roof in shown), default=1.0)
    for roof in sorted(shown, key=lambda one: -one.time_ns):
        if roof.flops is None or not roof.size_bytes:
            continue
        radius = max(_MOST_RADIUS * math.sqrt(roof.time_ns / longest), _LEAST_RADIUS)
        share = "" if roof.share is None else f", {roof.share:.0%} of the roof"
        picture.dot(
            scale.x(roof.flops / roof.size_bytes),
            scale.y(roof.flops / roof.time_ns),
            radius,
            colours[roof.layer.kind],
            title=f"{roof.layer.name} ({roof.layer.kind}) {roof.layer.step}: "
            f"{roof.time_ns / 1e6:.3f} ms{share}, bound by {roof.bound}",
        )
    y = _HEIGHT - _BOTTOM - 18.0 * min(len(kinds), _MOST_KINDS + 1)
    for index, kind in enumerate(kinds[: _MOST_KINDS + 1]):
        is_rest = index == _MOST_KINDS
        picture.dot(_WIDTH - _RIGHT + 20, y + 18 * index, 5, colours[kind])
        label = f"{len(kinds) - index} others" if is_rest else kind
        picture.word(_WIDTH - _RIGHT + 30, y + 4 + 18 * index, _short(label))


def _decades(values: Sequence[float]) -> tuple[int, int]:
    least, most = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return least, max(most, least + 1)


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:22]}..."
