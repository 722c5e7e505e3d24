"""Connections that send a request's head slowly, or never."""

import contextlib
import socket
import time

import pytest


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
