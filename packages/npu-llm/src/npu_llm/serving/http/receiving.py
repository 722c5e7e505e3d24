"""Reads the body of a request within bounds of size and time, and checks its fields."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from npu_llm.serving.http.bodies import Body
from npu_llm.serving.http.refusals import RequestError, field_error

__all__ = ["read_body", "read_bytes"]

_Wanted = TypeVar("_Wanted", bound=Body)


async def read_body(
    request: Request, wanted: type[_Wanted], *, most_bytes: int, seconds: float
) -> _Wanted:
    """Returns the body of a request.

    Args:
        request: whose body has not been read.
        wanted: what its fields are.
        most_bytes: how long it may be.
        seconds: how long it may take to come.

    Raises:
        RequestError: [request-type], [request-size], [request-time], [request-json],
            [request-field], [request-unsupported].
        ClientDisconnect: if the client leaves.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Pages of other sites can send other types to this machine without asking first.
        raise RequestError(
            f"content-type: must be application/json; got {kind[:80] or 'none'!r}. Set it.",
            code="request-type",
        )
    content = await read_bytes(request, most_bytes=most_bytes, seconds=seconds)
    try:
        given: Any = json.loads(content)
    except (ValueError, RecursionError) as failure:  # UnicodeDecodeError is a ValueError
        reason = "deeper levels than can be read" if isinstance(failure, RecursionError) else ""
        raise RequestError(
            f"body: must be JSON; got {reason or 'something else: ' + str(failure)[:120]}. "
            "Mend it.",
            code="request-json",
        ) from failure
    if not isinstance(given, dict):
        raise RequestError(
            f"body: must be a JSON object; got a {type(given).__name__}. Name the fields.",
            code="request-json",
        )
    try:
        return wanted.model_validate(given)
    except ValidationError as failure:
        raise field_error(failure.errors(include_url=False, include_context=False)) from failure
    except RecursionError as failure:
        raise RequestError(
            "body: must not be nested without end; got deeper levels than can be read. Mend it.",
            code="request-json",
        ) from failure


async def read_bytes(request: Request, *, most_bytes: int, seconds: float) -> bytes:
    """Returns the body as it is; takes and raises what read_body does."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:18]) > most_bytes:
        _refuse_size(most_bytes)
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > most_bytes:
                    _refuse_size(most_bytes)
    except TimeoutError as failure:
        raise RequestError(
            f"body: must come within {seconds:g} s; got {len(content):,} bytes by then. Send it "
            "at once.",
            code="request-time",
        ) from failure
    return bytes(content)


def _refuse_size(most_bytes: int) -> NoReturn:
    raise RequestError(
        f"body: must be at most {most_bytes:,} bytes; got more. Send less, or start the server "
        "with a higher bound.",
        code="request-size",
    )
