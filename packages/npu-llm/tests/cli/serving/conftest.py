"""A fake server: it returns the words of the question backwards, one by one."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Backwards(BaseHTTPRequestHandler):
    def do_GET(self):
        self._send("application/json", [json.dumps({"data": [{"id": "echo"}]})])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        words = body["messages"][-1]["content"].split()[::-1]
        chunks = [{"choices": [{"delta": {"content": f"{word} "}}]} for word in words]
        usage = {"prompt_tokens": 9, "completion_tokens": len(words),
                 "prompt_tokens_details": {"cached_tokens": 4}}  # fmt: skip
        end = [
            {"choices": [{"delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]
        texts = [json.dumps(one) for one in [*chunks, *end]]
        self._send("text/event-stream", [f"data: {text}\n\n" for text in [*texts, "[DONE]"]])

    def _send(self, kind, parts):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        for part in parts:
            self.wfile.write(part.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def backwards():
    """The server; `url` is its address, `bodies` the received requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Backwards)
    server.bodies = []
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
