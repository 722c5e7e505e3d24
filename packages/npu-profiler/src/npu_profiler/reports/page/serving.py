"""Offers the page to a browser of this machine, and to nobody else."""

import contextlib
import http.server
from collections.abc import Callable

from npu_profiler.errors import TraceError

__all__ = ["make_server", "serve"]

_HOST = "127.0.0.1"


def serve(page: str, port: int, *, say: Callable[[str], None]) -> None:
    """Offers a page until Ctrl-C.

    Args:
        page: the HTML.
        port: where; 0 for any that is free.
        say: is told the address when it is there.

    Raises:
        TraceError: [view-port] The port is taken, or not ours to take.
    """
    with make_server(page, port) as server:
        say(f"http://{_HOST}:{server.server_address[1]}/ shows it until Ctrl-C")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.1)


def make_server(page: str, port: int) -> http.server.ThreadingHTTPServer:
    """A server of a page on this machine's own address, which nobody else reaches.

    Raises:
        TraceError: [view-port] The port is taken, or not ours to take.
    """
    content = page.encode()

    class _Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.split("?")[0] not in ("/", "/index.html"):
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Keeps requests off the terminal."""

    try:
        return http.server.ThreadingHTTPServer((_HOST, port), _Handler)
    except (OSError, OverflowError) as failure:
        raise TraceError(
            f"view: --port must be one that is free; got {port} ({failure}). "
            "Leave it out for any that is.",
            code="view-port",
        ) from failure
