"""Bounds how long a connection may take to send a request's head."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["protocol_with_bounded_heads"]

_ANSWER = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def protocol_with_bounded_heads(seconds: float) -> type[H11Protocol]:
    """Returns uvicorn's protocol, but that a connection without a whole head is closed in time.

    uvicorn bounds how large an incomplete head may be and how long a connection may stay open after
    an answer, but not how long the head of a request may take: each such connection would hold a
    file of the process for ever.

    Args:
        seconds: from the connection, or from the first byte after an answer, to the head's end.
    """

    class BoundedHeads(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._await_head()
            else:
                self._forget_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_head()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(seconds, self._give_up)

        def _forget_head(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _give_up(self) -> None:
            if not self.transport.is_closing():
                self.transport.write(_ANSWER)
                self.transport.close()

    return BoundedHeads
