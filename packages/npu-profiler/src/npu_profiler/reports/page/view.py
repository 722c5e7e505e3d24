"""Builds the HTML page of a trace, which loads the trace from its own file or from a server.

The template is `view.html`. Its scripts in `script` draw the timeline on a canvas, because a page
that pans and zooms a million slices has to be one file without network access.
"""

import base64
import contextlib
import functools
import http.server
import json
import signal
import threading
import webbrowser
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from npu_command.output import render_page
from npu_profiler.errors import TraceError
from npu_profiler.queries.overview import overview
from npu_profiler.queries.spans import launches
from npu_profiler.reading import Trace, load_trace
from npu_profiler.reading.events import TraceText
from npu_profiler.reports.summary import VIEWS, figure_lines, heading_lines
from npu_profiler.reports.tables import Table

__all__ = [
    "build_page",
    "build_report",
    "build_served_page",
    "make_server",
    "open_browser",
    "serve",
]

_TABLES = {"op": "ops", "program": "programs", "type": "types of layers", "layer": "layers"}
_MOST_ROWS = 500
_TEMPLATE = Path(__file__).with_name("view.html")
# Sorted by dependency.
_SCRIPTS = (
    *("words", "columns", "reading", "flows", "sums", "search"),
    *("layout", "drawing", "panel", "page", "input", "start"),
)
_GZIP = 16 + zlib.MAX_WBITS


def build_page(trace: Trace) -> str:
    """Returns a page with the trace inside, for opening as a file."""
    # "</" would end the script element; JSON allows the escaped slash.
    report = json.dumps(build_report(trace), default=str).replace("</", "<\\/")
    return _render(trace.path, _pack(trace.path), report)


def build_served_page(path: Path) -> str:
    """Returns a page that loads `trace` and `report` from its server."""
    return _render(path, "", "")


def build_report(trace: Trace) -> dict[str, Any]:
    """Returns the summary and the tables by title, which the page shows around the timeline."""
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
    # A single gzip stream: browsers reject further members of a file packed in chunks.
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


_HOST = "127.0.0.1"


def serve(path: Path, port: int, *, say: Callable[[str], None], is_opened: bool = False) -> None:
    """Serves the page of a trace on a port (0: any free port) until Ctrl-C.

    The browser parses the trace, while this process computes the summary and the tables. Raises
    [view-port] if the port is in use or not permitted.
    """
    with make_server(path, port) as server:
        address = f"http://{_HOST}:{server.server_address[1]}/"
        say(f"{address} shows it until Ctrl-C")
        if is_opened:  # some browsers return only when closed
            opening = functools.partial(open_browser, address, say=say)
            threading.Thread(target=opening, daemon=True).start()
        with _interrupted() as stop:
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
            stop.wait()
            server.shutdown()


@contextlib.contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; an exception could be lost in Python's own callbacks."""
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def open_browser(address: str, *, say: Callable[[str], None]) -> None:
    """Opens an address in the browser; prints a note if there is no browser."""
    if not webbrowser.open(address):
        say("no browser was found: open that address in one of this machine")


def make_server(path: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Creates the server of a trace's page, on the loopback address.

    Raises [view-port] if the port is in use or not permitted.
    """
    computing = threading.Lock()

    @functools.cache
    def report() -> bytes:
        return json.dumps(build_report(load_trace(path)), default=str).encode()

    def only_report() -> list[bytes]:
        with computing:
            return [report()]

    pages: dict[str, tuple[str, Callable[[], Iterable[bytes]]]] = {
        "/": ("text/html; charset=utf-8", lambda: [build_served_page(path).encode()]),
        "/trace": ("application/octet-stream", lambda: map(str.encode, TraceText(path))),
        "/report": ("application/json", only_report),
    }

    class _Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = pages.get(self.path.split("?")[0])
            # DNS rebinding: another site's name for this address must not read the trace.
            host = self.headers.get("Host", "").split(":")[0]
            if found is None or host not in (_HOST, "localhost"):
                self.send_error(404)
                return
            kind, content = found
            try:
                parts = content()
            except TraceError as failure:
                self._answer(500, "text/plain; charset=utf-8", [str(failure).encode()])
                return
            self._answer(200, kind, parts)

        def _answer(self, status: int, kind: str, parts: Iterable[bytes]) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # a closed tab
                for part in parts:
                    self.wfile.write(part)

        def log_message(self, *args: object) -> None:
            """Suppresses the request log."""

    try:
        return http.server.ThreadingHTTPServer((_HOST, port), _Handler)
    except (OSError, OverflowError) as failure:
        raise TraceError(
            f"view: --port must be a free port, got {port} ({failure}). Omit it for any free port.",
            code="view-port",
        ) from failure
