"""Images and audio in messages: from data URLs, or fetched if the server allows it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import urllib.error
import urllib.request
from collections.abc import Sequence

from npu_llm.serving.request_error import RequestError
from npu_llm.tokenizer.tokenizer import Message

__all__ = ["with_media"]

_MAX_BYTES = 32 << 20
_SECONDS = 15.0


async def with_media(messages: Sequence[Message], *, may_fetch: bool) -> list[Message]:
    """Returns messages in which each `url` of an image or sound is replaced by its bytes, `data`.

    Args:
        messages: the messages of a request.
        may_fetch: whether URLs are fetched.

    Raises:
        RequestError: [request-field] for unreadable data, [request-unsupported] for a URL that may
            not be fetched.
    """
    found: list[Message] = []
    for message in messages:
        content = message.get("content")
        if not isinstance(content, list):
            found.append(message)
            continue
        parts = []
        for part in content:
            if "url" in part:
                data = await _read(part["url"], may_fetch=may_fetch)
                part = {"type": part["type"], "data": data}
            parts.append(part)
        found.append({**message, "content": parts})
    return found


async def _read(url: str, *, may_fetch: bool) -> bytes:
    if url.startswith("data:"):
        head, separator, data = url.partition(",")
        try:
            if not separator or not head.endswith(";base64"):
                raise ValueError("another data URL")
            return base64.b64decode(data, validate=True)
        except (ValueError, binascii.Error) as failure:
            raise _wrong(f"{failure}") from failure
    if not url.startswith(("http://", "https://")):
        raise _wrong("another address")
    if not may_fetch:
        raise RequestError(
            "`messages` must have images and audio as data URLs in base64, got an address, which "
            "this server does not fetch. Send the data, or start it with --allow-media-urls.",
            code="request-unsupported",
            parameter="messages",
        )
    try:
        return await asyncio.to_thread(_fetch, url)
    except (OSError, ValueError, urllib.error.URLError) as failure:
        raise _wrong(f"a failure to fetch it: {failure}") from failure


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_SECONDS) as response:
        content: bytes = response.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES:,} bytes")
    return content


def _wrong(received: str) -> RequestError:
    return RequestError(
        f"`messages` must have images and audio as data URLs in base64, got {received[:120]}. "
        "Send the data.",
        code="request-field",
        parameter="messages",
    )
