"""Makes the page of a trace: one file with its data, style and script in it.

What is drawn is chosen in `timeline_data.py`; the script is `view.js`, beside this file.
"""

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from npu_profiler.page.timeline_data import Timeline
from npu_profiler.queries.launches import launches
from npu_profiler.reading import Trace
from npu_profiler.tables import Table
from npu_profiler.tables.overview_text import heading_lines
from npu_profiler.tables.views import VIEWS

__all__ = ["build_page", "notes"]

_TABLES = ("op", "program", "type", "layer")
_MOST_ROWS = 500


def build_page(trace: Trace, timeline: Timeline) -> str:
    """The page, which a browser opens from a file."""
    launched = launches(trace)
    tables = {name: _table(VIEWS[name](trace, launched)) for name in _TABLES}
    document = {
        **timeline.document,
        "title": trace.path.name,
        "notes": [*heading_lines(trace), *notes(timeline)],
        "tables": {name: table for name, table in tables.items() if table["rows"]},
    }
    # "</" would end the script; JSON allows the escaped slash.
    data = json.dumps(document, separators=(",", ":"), default=str).replace("</", "<\\/")
    parts = {"TITLE": escape(trace.path.name), "STYLE": _asset("view.css"),
             "SCRIPT": _asset("view.js"), "DATA": data}  # fmt: skip
    return _fill(_asset("view.html"), parts)


def notes(timeline: Timeline) -> list[str]:
    """What is not drawn as it is, a line each."""
    lines = []
    if timeline.cell_ns:
        lines.append(
            f"{timeline.slices:,} slices are drawn as {timeline.drawn:,} boxes: neighbours below "
            f"{timeline.cell_ns / 1000:,.1f} us are one grey box. --limit draws more"
        )
    lines += [f"not drawn: {what}" for what in timeline.left_out]
    return lines


def _table(table: Table) -> dict[str, Any]:
    rows = [list(row) for row in table.rows[:_MOST_ROWS]]
    more = len(table.rows) - len(rows)
    title = f"{table.title} (the first {len(rows)} of {len(table.rows):,})" if more else table.title
    return {
        "title": title,
        "columns": [[column.title, column.unit] for column in table.columns],
        "rows": rows,
    }


def _asset(name: str) -> str:
    return files("npu_profiler.page").joinpath(name).read_text("utf-8")


def _fill(text: str, parts: Mapping[str, str]) -> str:
    # Once from left to right: what is put in may contain the marks of other parts.
    pieces = text.split("@@")
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))
