"""Relays what a replica answers, and asks another one where a replica is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from npu_llm.errors import ServerError
from npu_llm.serving.http.event_stream import event
from npu_llm.serving.http.refusals import error_content, refusal_of

__all__ = ["relay"]

_TRIES = 8
_PAUSE_S = 0.25  # before the second try; longer before each further one


async def relay(
    ask: Callable[[], AsyncIterator[Message]], lost: tuple[type[Exception], ...]
) -> Response:
    """Returns a replica's response.

    A request whose replica is lost before the client was told anything is asked again: an answer
    that is not streamed is told at its end. A stream that has begun ends with an error.

    Args:
        ask: sends the request to a replica; returns the ASGI messages of its response.
        lost: what is raised where a replica is lost.
    """
    for again in range(_TRIES):
        await asyncio.sleep(again * _PAUSE_S)
        try:
            return await _response(ask(), lost)
        except lost:
            continue
    return refusal_of(_lost(f"{_TRIES} that ended"))


async def _response(
    messages: AsyncIterator[Message], lost: tuple[type[Exception], ...]
) -> Response:
    start = await anext(messages)
    first = await anext(messages)
    kind = dict(start["headers"]).get(b"content-type", b"")
    response: Response
    if kind.startswith(b"text/event-stream"):
        response = StreamingResponse(_stream(first, messages, lost), start["status"])
    else:
        content = first.get("body", b"")
        while first.get("more_body"):
            first = await anext(messages)
            content += first.get("body", b"")
        response = Response(content, start["status"])
    response.raw_headers = [(bytes(name), bytes(value)) for name, value in start["headers"]]
    return response


async def _stream(
    message: Message, messages: AsyncIterator[Message], lost: tuple[type[Exception], ...]
) -> AsyncGenerator[bytes, None]:
    try:
        while True:
            yield message.get("body", b"")
            if not message.get("more_body"):
                return
            message = await anext(messages)
    except lost:
        yield event(error_content(_lost("one that ended in the middle of its answer")))


def _lost(what: str) -> ServerError:
    return ServerError(
        f"server: must have a replica that answers; got {what}. Ask again.", code="server-replica"
    )
