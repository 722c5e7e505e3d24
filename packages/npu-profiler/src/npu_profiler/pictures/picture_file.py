"""The file of a picture: its name, and SVG as it is or in a page of its own."""

from collections.abc import Sequence
from pathlib import Path

from npu_command.pages import render_page
from npu_profiler.errors import TraceError
from npu_profiler.output_file import check_writable, write_bytes

__all__ = ["check_picture", "write_picture"]

_FORMATS = (".svg", ".png", ".html")

_PAGE = Path(__file__).with_name("picture.html")


def check_picture(name: str, *, formats: Sequence[str] = _FORMATS) -> Path:
    """Returns the path of a picture that is to be written.

    Args:
        name: The file's.
        formats: The suffixes that it may have.

    Raises:
        TraceError: [picture-format] Its name says no format that can be written,
            [output-unwritable] see check_writable.
    """
    if Path(name).suffix not in formats:
        raise TraceError(
            f"picture: must end in {' or '.join(formats)}; got {name}. Name it so",
            "picture-format",
        )
    return check_writable(name, "picture")


def write_picture(path: Path, svg: str) -> None:
    """Writes an SVG picture, within a page if the name ends in .html.

    Raises:
        TraceError: [output-unwritable] It cannot be written.
    """
    content = render_page(_PAGE, picture=svg) if path.suffix == ".html" else svg
    write_bytes(path, content.encode(), "picture")
