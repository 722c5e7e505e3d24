"""Connections: heads that come slowly or never, the end of the server, TLS, and other sites."""

import contextlib
import json
import logging
import socket
import ssl
import threading
import time
from pathlib import Path

import httpx
import pytest

from npu_llm.serving.http.middleware import LOG

BOTH = Path(__file__).with_name("localhost.pem")  # a certificate for tests, and its key


def connected(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def answer_of(connection):
    return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


@pytest.mark.parametrize("head", [b"", b"GET /health HTTP/1.1\r\nHost: loc"])
def test_a_head_that_does_not_come_ends_the_connection(serve, head):
    with serve("plain", header_timeout_s=0.3) as server, connected(server) as connection:
        connection.sendall(head)
        assert answer_of(connection).startswith("HTTP/1.1 408 ")


def test_a_byte_now_and_then_gains_no_time(serve):
    with serve("plain", header_timeout_s=0.5) as server, connected(server) as connection:
        started = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() < started + 20:
                connection.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() - started < 10


def test_an_answered_connection_may_rest_and_ask_again(serve):
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve("plain", header_timeout_s=0.4) as server, connected(server) as connection:
        for _ in range(2):
            connection.sendall(request)
            answer = connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 ")
            while not answer.endswith(b"}"):
                answer += connection.recv(4096)
            time.sleep(0.8)
        connection.sendall(request[:10])
        assert answer_of(connection).startswith("HTTP/1.1 408 ")


ENDLESS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "the"}], "max_tokens": 60_000},
    "/api/chat": {"messages": [{"role": "user", "content": "the"}], "model": "long"},
}


@pytest.mark.parametrize("path", list(ENDLESS))
def test_streams_past_the_grace_end_with_an_error(serve, path, caplog, monkeypatch):
    monkeypatch.setattr(LOG, "propagate", True)
    body = {**ENDLESS[path], "stream": True}
    pieces = []
    with caplog.at_level(logging.INFO), serve("long", grace_s=0.3) as server:
        begun = threading.Event()
        httpx.post(f"{server.url}/tokenize", json={"prompt": "the"}, timeout=60)  # loads it
        server.model("long").ends = frozenset()

        def read():
            with httpx.stream("POST", server.url + path, json=body, timeout=60) as response:
                for line in response.iter_lines():
                    pieces.append(line)
                    if len(pieces) > 4:
                        begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert begun.wait(30)
    thread.join(30)
    last = json.loads([line for line in pieces if line][-1].removeprefix("data: "))
    error = last["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.endswith("[server-stopping]")
    assert not any(record.exc_info for record in caplog.records)
    assert not any("Traceback" in record.getMessage() for record in caplog.records)


def test_answers_come_by_https(serve):
    with serve("plain", tls_cert=BOTH, tls_key=BOTH) as server:
        context = ssl.create_default_context(cafile=BOTH)
        assert httpx.get(f"{server.url}/health", verify=context).status_code == 200


def test_pages_of_named_sites_may_ask(serve):
    site = "https://chat.example"
    with serve("plain", cors_origins=(site,), api_keys=("k",)) as server:
        url = f"{server.url}/v1/models"
        asks = {"origin": site, "access-control-request-method": "POST"}
        asks["access-control-request-headers"] = "authorization, content-type"
        allowed = httpx.options(url, headers=asks)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == site
        assert "authorization" in allowed.headers["access-control-allow-headers"]
        assert httpx.options(url, headers=asks | {"origin": "https://evil.example"}).is_error
        found = httpx.get(url, headers={"origin": site, "authorization": "Bearer k"})
        assert found.headers["access-control-allow-origin"] == site
        assert httpx.get(url, headers={"origin": site}).status_code == 401
