"""Requests relayed to replicas of one model: prefix keys, ASGI in process, retries."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, MutableMapping
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Scope

from npu_llm.errors import ServerError
from npu_llm.serving.http.errors import error_content, error_response
from npu_llm.serving.http.streaming import event

__all__ = ["prefix_key", "relay", "run_in_process", "sent_scope"]

_CHARACTERS = 1024  # length of the prefix in characters
_FIELDS = ("messages", "instructions", "prompt", "input")


def prefix_key(body: bytes) -> str:
    """Returns a digest of a request's prefix; empty if it has no text.

    A request's `prompt_cache_key` replaces its text. Only the first message of a conversation is
    used, so that all turns of a conversation, and conversations with the same system message, have
    the same digest.

    Args:
        body: the request's body, which may be invalid JSON.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(given, dict):
        return ""
    named = given.get("prompt_cache_key")
    text = named if isinstance(named, str) else ""
    for field in _FIELDS:
        text = text or _text(given.get(field))
    if not text:
        return ""
    whole = json.dumps([given.get("model"), text[:_CHARACTERS]])
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    """Returns the prefix of a field: a text, tokens or a first message."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return json.dumps([value.get("role"), value.get("content")])
    if isinstance(value, list) and value:
        return _text(value[0]) if isinstance(value[0], (str, dict, list)) else json.dumps(value)
    return ""


_SENT = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers")


def sent_scope(scope: Scope) -> dict[str, Any]:
    """Returns the parts of a request's scope that can be sent to another process."""
    found = {name: scope[name] for name in _SENT if name in scope}
    return found | {"headers": [(bytes(name), bytes(value)) for name, value in scope["headers"]]}


async def run_in_process(
    app: ASGIApp, scope: MutableMapping[str, Any], body: bytes
) -> AsyncGenerator[Message, None]:
    """Yields the messages of an application's response; closing it disconnects the client.

    Args:
        app: the application.
        scope: scope of the request.
        body: complete body of the request.
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
            if not coming.done():  # the response is incomplete
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


_TRIES = 8
_PAUSE_S = 0.25  # before the second attempt; longer before each further one


async def relay(
    ask: Callable[[], AsyncIterator[Message]], lost: tuple[type[Exception], ...]
) -> Response:
    """Returns a replica's response.

    If a replica is lost before the response has started, the request is sent again. A response that
    is not streamed starts when it is complete. A stream that has started ends with an error.

    Args:
        ask: sends the request to a replica; returns the ASGI messages of its response.
        lost: exceptions that mean a lost replica.
    """
    for again in range(_TRIES):
        await asyncio.sleep(again * _PAUSE_S)
        try:
            return await _response(ask(), lost)
        except lost:
            continue
    return error_response(_lost(f"{_TRIES} that ended"))


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
        f"`server` must have a replica that responds, got {what}. Retry.", code="server-replica"
    )
