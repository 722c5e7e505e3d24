"""Runs an ASGI application on one request, without a connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Scope

__all__ = ["answer_in_process", "sent_scope"]

_SENT = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers")


def sent_scope(scope: Scope) -> dict[str, Any]:
    """Returns what of a request's scope can be sent to another process."""
    found = {name: scope[name] for name in _SENT if name in scope}
    return found | {"headers": [(bytes(name), bytes(value)) for name, value in scope["headers"]]}


async def answer_in_process(
    app: ASGIApp, scope: MutableMapping[str, Any], body: bytes
) -> AsyncGenerator[Message, None]:
    """Yields the messages that an application answers with; closing it is the client's leaving.

    Args:
        app: the application.
        scope: of the request.
        body: of the request, whole.
    """
    messages: asyncio.Queue[Message] = asyncio.Queue()
    left = asyncio.Event()
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.put_nowait(message)

    work = asyncio.ensure_future(app({**scope, "root_path": ""}, receive, send))
    coming = asyncio.ensure_future(messages.get())
    try:
        while True:
            await asyncio.wait({coming, work}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():  # it ended without the end of a response
                work.result()
                return
            message = coming.result()
            yield message
            if message["type"] == "http.response.body" and not message.get("more_body"):
                return
            coming = asyncio.ensure_future(messages.get())
    finally:
        coming.cancel()
        left.set()
        with contextlib.suppress(asyncio.CancelledError):
            await work
