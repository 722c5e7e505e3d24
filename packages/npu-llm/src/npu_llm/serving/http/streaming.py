"""Streamed responses: server-sent events, or lines of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["ClientLeftError", "EventStream", "event", "until_disconnect"]


def event(content: Mapping[str, Any] | str, *, name: str | None = None) -> bytes:
    """Returns one event.

    Args:
        content: JSON, or a line of text.
        name: the event's type; None to omit it.
    """
    text = content if isinstance(content, str) else json.dumps(content, allow_nan=False)
    kind = "" if name is None else f"event: {name}\n"
    return f"{kind}data: {text}\n\n".encode()


class EventStream(Response):
    """A streamed response, which closes its generator when the client leaves."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        close: Callable[[], Awaitable[None]],
        *,
        media_type: str = "text/event-stream",
    ) -> None:
        """Creates the response.

        Args:
            events: generator of events; must not raise.
            close: called at the end, even if nothing was sent.
            media_type: media type of the response.
        """
        # X-Accel-Buffering: nginx would buffer events.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=media_type)
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
    """Waits until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


_Result = TypeVar("_Result")


class ClientLeftError(Exception):
    """The client closed its connection."""


async def until_disconnect(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Returns the result of the work, unless the client disconnects first.

    Raises:
        ClientLeftError: if the client disconnects; the work is cancelled.
    """
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientLeftError
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()
