"""A picture made of lines, boxes, dots and words, and the files that it becomes.

What stands in a picture is decided by whoever draws it: `bars.py`, `roof.py`, `memory_picture.py`.
"""

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

from npu_profiler.errors import TraceError
from npu_profiler.output_file import write_bytes
from npu_profiler.pictures.picture_file import check_picture, write_picture

__all__ = ["INK", "PALETTE", "Picture", "check_target"]

INK = "#888888"  # reads on light and on dark pages
PALETTE = ("#3f51b5", "#e57373", "#26a69a", "#ffa726", "#8d6e63", "#78909c", "#ab47bc", "#9ccc65")

_SCALE = 2  # pixels of a PNG for one unit
_FONT = 12


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str


@dataclass(frozen=True, slots=True)
class _Line:
    points: tuple[tuple[float, float], ...]
    colour: str
    is_dashed: bool


@dataclass(frozen=True, slots=True)
class _Dot:
    x: float
    y: float
    radius: float
    colour: str
    title: str


@dataclass(frozen=True, slots=True)
class _Word:
    x: float
    y: float
    text: str
    anchor: str
    is_bold: bool
    colour: str
    size: int


@dataclass(slots=True)
class Picture:
    """Shapes in the order in which they are drawn.

    Attributes:
        width: In units, which are pixels at the usual size.
        height: Also in units; it may grow while one draws.
        title: For those who do not see it.
    """

    width: float
    height: float
    title: str
    _shapes: list[_Box | _Line | _Dot | _Word] = field(default_factory=list)

    def box(
        self, x: float, y: float, width: float, height: float, colour: str, *, title: str = ""
    ) -> None:
        """Draws a filled box; `title` shows when a pointer rests on it."""
        self._shapes.append(_Box(x, y, width, height, colour, title))

    def line(
        self,
        points: Sequence[tuple[float, float]],
        *,
        colour: str = INK,
        is_dashed: bool = False,
    ) -> None:
        """Draws a line through points."""
        self._shapes.append(_Line(tuple(points), colour, is_dashed))

    def dot(self, x: float, y: float, radius: float, colour: str, *, title: str = "") -> None:
        """Draws a filled circle around a point."""
        self._shapes.append(_Dot(x, y, radius, colour, title))

    def word(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "start",
        is_bold: bool = False,
        colour: str = INK,
        size: int = _FONT,
    ) -> None:
        """Writes a text; `anchor` says which part of it stands at x: start, middle or end."""
        self._shapes.append(_Word(x, y, text, anchor, is_bold, colour, size))

    def svg(self) -> str:
        """The picture as an SVG document."""
        parts = [_svg(shape) for shape in self._shapes]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} '
            f'{self.height:g}" role="img" font-family="sans-serif" font-size="{_FONT}">\n'
            f"<title>{escape(self.title)}</title>\n" + "\n".join(parts) + "\n</svg>\n"
        )

    def png(self) -> bytes:
        """The picture on white, as PNG.

        Raises:
            TraceError: [png-library] Pillow is not installed.
        """
        _check_pillow()
        from PIL import Image, ImageDraw, ImageFont

        size = (round(self.width * _SCALE), round(self.height * _SCALE))
        image = Image.new("RGB", size, "white")
        draw = ImageDraw.Draw(image)
        for shape in self._shapes:
            if isinstance(shape, _Box):
                if shape.width > 0 and shape.height > 0:
                    right = max(shape.x + shape.width, shape.x + 1 / _SCALE)
                    bottom = shape.y + shape.height
                    draw.rectangle(
                        _pixels((shape.x, shape.y), (right, bottom)), fill=shape.colour[:7]
                    )
            elif isinstance(shape, _Line):
                pieces = _dashes(shape.points) if shape.is_dashed else [shape.points]
                for piece in pieces:
                    draw.line(_pixels(*piece), fill=shape.colour[:7], width=_SCALE)
            elif isinstance(shape, _Dot):
                corners = [
                    (shape.x + sign * shape.radius, shape.y + sign * shape.radius)
                    for sign in (-1, 1)
                ]
                draw.ellipse(_pixels(*corners), fill=shape.colour[:7])
            else:
                font = ImageFont.load_default(shape.size * _SCALE)
                anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
                draw.text(
                    _pixels((shape.x, shape.y))[0],
                    shape.text,
                    fill="#444444" if shape.colour == INK else shape.colour[:7],
                    font=font,
                    anchor=anchor,
                    stroke_width=1 if shape.is_bold else 0,
                )
        stream = io.BytesIO()
        image.save(stream, "PNG", optimize=True)
        return stream.getvalue()

    def write(self, path: Path) -> None:
        """Writes the picture by its suffix: .svg, .png, or .html for a page with the SVG.

        Raises:
            TraceError: [output-unwritable] It cannot be written, [png-library] Pillow is missing.
        """
        if path.suffix == ".png":
            write_bytes(path, self.png(), "picture")
        else:
            write_picture(path, self.svg())


def check_target(name: str) -> Path:
    """Returns the path of a picture that is to be written, before the work that it shows.

    Raises:
        TraceError: [picture-format] [output-unwritable] It cannot be written, [png-library] Pillow
            is missing.
    """
    path = check_picture(name)
    if path.suffix == ".png":
        _check_pillow()
    return path


def _check_pillow() -> None:
    if importlib.util.find_spec("PIL") is None:
        raise TraceError(
            "picture: a .png needs Pillow; it is not installed. "
            'Install "npu-profiler[png]", or name a .svg',
            "png-library",
        )


def _svg(shape: _Box | _Line | _Dot | _Word) -> str:
    if isinstance(shape, _Box):
        return _titled(
            f'<rect x="{shape.x:.2f}" y="{shape.y:.2f}" width="{max(shape.width, 0):.2f}" '
            f'height="{shape.height:.2f}" fill="{shape.colour}"',
            "rect",
            shape.title,
        )
    if isinstance(shape, _Dot):
        return _titled(
            f'<circle cx="{shape.x:.1f}" cy="{shape.y:.1f}" r="{shape.radius:.1f}" '
            f'fill="{shape.colour}" fill-opacity="0.75"',
            "circle",
            shape.title,
        )
    if isinstance(shape, _Line):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        dashes = ' stroke-dasharray="5 4"' if shape.is_dashed else ""
        return f'<polyline points="{points}" fill="none" stroke="{shape.colour}"{dashes}/>'
    bold = ' font-weight="bold"' if shape.is_bold else ""
    size = "" if shape.size == _FONT else f' font-size="{shape.size}"'
    anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" fill="{shape.colour}"{anchor}{bold}{size}>'
        f"{escape(shape.text)}</text>"
    )


def _titled(start: str, tag: str, title: str) -> str:
    return f"{start}><title>{escape(title)}</title></{tag}>" if title else f"{start}/>"


def _pixels(*points: tuple[float, float]) -> list[tuple[float, float]]:
    return [(x * _SCALE, y * _SCALE) for x, y in points]


def _dashes(points: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, float], ...]]:
    pieces: list[tuple[tuple[float, float], ...]] = []
    for (x0, y0), (x1, y1) in pairwise(points):
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        count = max(int(length // 9), 1)
        for at in range(count):
            start, end = at / count, (at + 0.55) / count
            pieces.append(
                (
                    (x0 + (x1 - x0) * start, y0 + (y1 - y0) * start),
                    (x0 + (x1 - x0) * end, y0 + (y1 - y0) * end),
                )
            )
    return pieces
