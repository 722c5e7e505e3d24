"""Makes the page of a trace, which reads the trace itself: from its own file, or from the server.

The template is `view.html`. Its scripts, in the folder `script`, draw the timeline by hand: a
million slices that are panned and zoomed at once need a canvas, and the page has to be one file
that needs no network.
"""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

from npu_command.pages import render_page
from npu_profiler.queries.launches import launches
from npu_profiler.queries.overview import overview
from npu_profiler.reading import Trace
from npu_profiler.reading.chunks import TraceText
from npu_profiler.reports.tables import Table
from npu_profiler.reports.tables.overview_text import figure_lines, heading_lines
from npu_profiler.reports.tables.views import VIEWS

__all__ = ["build_page", "build_report", "build_served_page"]

_TABLES = {"op": "ops", "program": "programs", "type": "types of layers", "layer": "layers"}
_MOST_ROWS = 500
_TEMPLATE = Path(__file__).with_name("view.html")
# In the order in which they use each other.
_SCRIPTS = (
    *("words", "columns", "reading", "flows", "sums", "search"),
    *("layout", "drawing", "panel", "page", "input", "start"),
)
_GZIP = 16 + zlib.MAX_WBITS


def build_page(trace: Trace) -> str:
    """The page with the trace in it, which a browser opens from a file."""
    # "</" would end the script; JSON allows the escaped slash.
    report = json.dumps(build_report(trace), default=str).replace("</", "<\\/")
    return _render(trace.path, _pack(trace.path), report)


def build_served_page(path: Path) -> str:
    """The page that asks its server for `trace` and `report`."""
    return _render(path, "", "")


def build_report(trace: Trace) -> dict[str, Any]:
    """What stands beside and below the timeline: the summary, and tables by their titles."""
    launched = launches(trace)
    tables = {title: _table(VIEWS[name](trace, launched)) for name, title in _TABLES.items()}
    return {
        "summary": [*heading_lines(trace), *figure_lines(trace, overview(trace))],
        "tables": {title: table for title, table in tables.items() if table["rows"]},
    }


def _render(path: Path, trace: str, report: str) -> str:
    values = {"title": path.name, "trace": trace, "report": report, "scripts": _SCRIPTS}
    return render_page(_TEMPLATE, **values)


def _pack(path: Path) -> str:
    # One stream: browsers refuse the second member of a file that was packed piece by piece.
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    packed = [packer.compress(text.encode()) for text in TraceText(path)]
    return base64.b64encode(b"".join([*packed, packer.flush()])).decode()


def _table(table: Table) -> dict[str, Any]:
    rows = [list(row) for row in table.rows[:_MOST_ROWS]]
    more = len(table.rows) - len(rows)
    title = f"{table.title} (the first {len(rows)} of {len(table.rows):,})" if more else table.title
    return {
        "title": title,
        "columns": [[column.title, column.unit] for column in table.columns],
        "rows": rows,
    }
