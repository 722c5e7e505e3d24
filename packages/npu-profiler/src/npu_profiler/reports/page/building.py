"""Makes the page of a trace: one file with its data, style and script in it.

The template is `view.html` and the script `view.js`, beside this file. That one draws the timeline
by hand: rows of 100,000 slices that are panned and zoomed at once need a canvas, and the page has
to be one file that needs no network.
"""

import json
from pathlib import Path
from typing import Any

from npu_command.pages import render_page
from npu_profiler.queries.launches import launches
from npu_profiler.reading import Trace
from npu_profiler.reports.page.timeline_data import Timeline
from npu_profiler.reports.tables import Table
from npu_profiler.reports.tables.overview_text import heading_lines
from npu_profiler.reports.tables.views import VIEWS

__all__ = ["build_page", "notes"]

_TABLES = ("op", "program", "type", "layer")
_MOST_ROWS = 500
_TEMPLATE = Path(__file__).with_name("view.html")


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
    return render_page(_TEMPLATE, title=trace.path.name, data=data)


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
