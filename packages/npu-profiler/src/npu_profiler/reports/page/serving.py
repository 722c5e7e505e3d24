"""Offers the page of a trace to a browser of this machine, and to nobody else."""

import contextlib
import functools
import http.server
import json
import signal
import threading
import webbrowser
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from npu_profiler.errors import TraceError
from npu_profiler.reading import load_trace
from npu_profiler.reading.chunks import TraceText
from npu_profiler.reports.page.building import build_report, build_served_page

__all__ = ["make_server", "open_browser", "serve"]

_HOST = "127.0.0.1"


def serve(path: Path, port: int, *, say: Callable[[str], None], is_opened: bool = False) -> None:
    """Offers the page of a trace until Ctrl-C.

    The browser reads the trace itself, while this process computes the summary and the tables.

    Args:
        path: the trace.
        port: where; 0 for any that is free.
        say: is told the address when it is there.
        is_opened: whether a browser is asked to open it.

    Raises:
        TraceError: [view-port] The port is taken, or not ours to take.
    """
    with make_server(path, port) as server:
        address = f"http://{_HOST}:{server.server_address[1]}/"
        say(f"{address} shows it until Ctrl-C")
        if is_opened:  # some browsers return when they are closed
            opening = functools.partial(open_browser, address, say=say)
            threading.Thread(target=opening, daemon=True).start()
        with _interrupted() as stop:
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
            stop.wait()
            server.shutdown()


@contextlib.contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; as an exception it would be lost in callbacks of Python's own."""
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def open_browser(address: str, *, say: Callable[[str], None]) -> None:
    """Asks the browser to open an address; says so where there is none."""
    if not webbrowser.open(address):
        say("no browser was found: open that address in one of this machine")


def make_server(path: Path, port: int) -> http.server.ThreadingHTTPServer:
    """A server of a trace's page on this machine's own address, which nobody else reaches.

    Raises:
        TraceError: [view-port] The port is taken, or not ours to take.
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
            # Another page's name that leads to this address must not read the trace.
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
            with contextlib.suppress(ConnectionError):  # a tab that was closed
                for part in parts:
                    self.wfile.write(part)

        def log_message(self, *args: object) -> None:
            """Keeps requests off the terminal."""

    try:
        return http.server.ThreadingHTTPServer((_HOST, port), _Handler)
    except (OSError, OverflowError) as failure:
        raise TraceError(
            f"view: --port must be one that is free; got {port} ({failure}). "
            "Omit it for any that is.",
            code="view-port",
        ) from failure
