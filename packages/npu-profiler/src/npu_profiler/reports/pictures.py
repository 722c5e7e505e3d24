"""Chart files: SVG, PNG, or a separate HTML page, by suffix."""

from collections.abc import Sequence
from pathlib import Path

from npu_command.charts import Chart, check_matplotlib
from npu_command.output import render_page
from npu_profiler.errors import TraceError
from npu_profiler.output_file import check_writable, write_bytes

__all__ = ["check_picture", "check_target", "write_picture"]

_FORMATS = (".svg", ".png", ".html")
_PAGE = Path(__file__).with_name("picture.html")


def check_picture(name: str, *, formats: Sequence[str] = _FORMATS) -> Path:
    """Returns the path of a chart file; its suffix must be one of these.

    Raises [picture-format] for another suffix, and the errors of check_writable.
    """
    if Path(name).suffix not in formats:
        raise TraceError(
            f"`picture` must end in {' or '.join(formats)}, got {name}. Rename it.",
            code="picture-format",
        )
    return check_writable(name, "picture")


def check_target(name: str) -> Path:
    """Returns the path of a chart file; call it before the work.

    Raises the errors of check_picture, and [plot-library] if matplotlib is missing.
    """
    path = check_picture(name)
    check_matplotlib("npu-profiler", TraceError)
    return path


def write_picture(path: Path, chart: Chart) -> None:
    """Writes a chart by the file's suffix: .svg, .png, or .html for a page with the SVG."""
    if path.suffix == ".png":
        content = chart.png()
    elif path.suffix == ".html":
        content = render_page(_PAGE, title=chart.title, picture=chart.svg()).encode()
    else:
        content = chart.svg().encode()
    write_bytes(path, content, "picture")
