"""EventStream: a response of server-sent events that ends its source when the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["EventStream", "event"]


def event(content: Mapping[str, Any] | str, *, name: str | None = None) -> bytes:
    """Returns one event.

    Args:
        content: JSON, or a line of text.
        name: the event's type; None for none.
    """
    text = content if isinstance(content, str) else json.dumps(content, allow_nan=False)
    kind = "" if name is None else f"event: {name}\n"
    return f"{kind}data: {text}\n\n".encode()


class EventStream(Response):
    """Sends what a generator yields."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], close: Callable[[], Awaitable[None]]
    ) -> None:
        """Takes the events.

        Args:
            events: must not raise.
            close: called at the end, also when nothing was sent.
        """
        # X-Accel-Buffering: nginx would hold events back.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response; see Starlette."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        sending = asyncio.create_task(self._send(start, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending
            await self._events.aclose()
            await self._close()

    async def _send(self, start: dict[str, Any], send: Send) -> None:
        await send(start)
        async for content in self._events:
            await send({"type": "http.response.body", "body": content, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    """Waits until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
