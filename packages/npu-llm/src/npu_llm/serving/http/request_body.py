"""Reads request bodies and forms with limits of size and time, and checks their fields."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from npu_llm.errors import ServerError
from npu_llm.serving.http.errors import field_error
from npu_llm.serving.http.schemas.body import Body, FormBody, other_fields
from npu_llm.serving.http.settings import Settings
from npu_llm.serving.request_error import RequestError

__all__ = ["IGNORED", "read_body", "read_bytes", "read_form"]

_Wanted = TypeVar("_Wanted", bound=Body)
# Key in a request's scope for the names of ignored fields.
IGNORED = "npu_llm.ignored"
_Form = TypeVar("_Form", bound=FormBody)


async def read_body(request: Request, wanted: type[_Wanted], settings: Settings) -> _Wanted:
    """Returns the body of a request, and records the ignored fields in its scope.

    Args:
        request: a request whose body has not been read.
        wanted: the schema of its fields.
        settings: limits of size and time, and whether unknown fields are rejected.

    Raises:
        RequestError: [request-type], [request-size], [request-time], [request-json],
            [request-field], [request-unsupported].
        ClientDisconnect: if the client leaves.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and "origin" in request.headers:
        # Pages of other sites can send other types to this machine without a preflight. Browsers
        # send the page's site; programs, some of which send no type, do not.
        raise RequestError(
            "`content-type` must be application/json for requests from a page, got "
            f"{kind[:80] or 'none'!r}. Set it.",
            code="request-type",
        )
    content = await read_bytes(
        request, max_bytes=settings.max_body_bytes, seconds=settings.body_timeout_s
    )
    try:
        given: Any = json.loads(content)
    except (ValueError, RecursionError) as failure:  # UnicodeDecodeError is a ValueError
        reason = "more nesting levels than supported" if isinstance(failure, RecursionError) else ""
        raise RequestError(
            f"`body` must be JSON, got {reason or 'something else: ' + str(failure)[:120]}. "
            "Correct it.",
            code="request-json",
        ) from failure
    # 8 MB of numbers take 0.1 s, and as much again below: other requests come between.
    await asyncio.sleep(0)
    if not isinstance(given, dict):
        raise RequestError(
            f"`body` must be a JSON object, got a {type(given).__name__}. Send the fields.",
            code="request-json",
        )
    try:
        found = wanted.model_validate(given)
        _note_others(request, found, is_strict=settings.refuses_unknown_fields)
        return found
    except ValidationError as failure:
        raise field_error(failure.errors(include_url=False, include_context=False)) from failure
    except RecursionError as failure:
        raise RequestError(
            "`body` must have limited nesting, got more levels than supported. Correct it.",
            code="request-json",
        ) from failure


def _note_others(request: Request, body: Body, *, is_strict: bool) -> None:
    """Rejects unsupported fields, and records unknown ones."""
    others = other_fields(body)
    refused = others.unsupported + (others.unknown if is_strict else [])
    if refused:
        name = refused[0][:200]
        raise RequestError(
            f"`{name}` must be a supported field with a supported value, got another. Omit it.",
            code="request-unsupported",
            parameter=name,
        )
    if others.unknown:
        request.scope[IGNORED] = others.unknown


async def read_bytes(request: Request, *, max_bytes: int, seconds: float) -> bytes:
    """Returns the body as bytes; raises the errors of read_body.

    Args:
        request: a request whose body has not been read.
        max_bytes: maximum size.
        seconds: maximum time to receive it.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:18]) > max_bytes:
        _refuse_size(max_bytes)
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > max_bytes:
                    _refuse_size(max_bytes)
    except TimeoutError as failure:
        raise RequestError(
            f"`body` must arrive within {seconds:g} s, got {len(content):,} bytes by then. Send "
            "it at once.",
            code="request-time",
        ) from failure
    return bytes(content)


def _refuse_size(max_bytes: int) -> NoReturn:
    raise RequestError(
        f"`body` must be at most {max_bytes:,} bytes, got more. Send less, or start the server "
        "with a higher limit.",
        code="request-size",
    )


_SOUND_BYTES = 25 << 20
_MAX_FIELDS = 64
_MAX_FIELD_BYTES = 64 << 10


async def read_form(
    request: Request, wanted: type[_Form], settings: Settings
) -> tuple[_Form, bytes]:
    """Returns the fields of a form, and the content of its `file`.

    Args:
        request: a request whose body has not been read.
        wanted: the schema of its fields.
        settings: see read_body; the size limit of a form is at least 25 MB, OpenAI's limit.

    Raises:
        RequestError: [request-type], [request-size], [request-time], [request-form],
            [request-field], [request-unsupported].
        ServerError: [server-host] for a form of another site's page.
        ClientDisconnect: if the client leaves.
    """
    _check_origin(request, settings)
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise RequestError(
            f"`content-type` must be multipart/form-data, got {kind[:80] or 'none'!r}. Send the "
            "audio as a form's file.",
            code="request-type",
        )
    most = max(settings.max_body_bytes, _SOUND_BYTES)
    content = await read_bytes(request, max_bytes=most, seconds=settings.body_timeout_s)
    try:
        form = await _parse(request, content)
    except (MultiPartException, KeyError, ValueError) as failure:
        raise RequestError(
            f"`body` must be a form of at most {_MAX_FIELDS} fields and one file, got another "
            f"({str(failure)[:120] or type(failure).__name__}). Correct it.",
            code="request-form",
        ) from failure
    try:
        found = _checked(form, wanted)
        _note_others(request, found, is_strict=settings.refuses_unknown_fields)
        return found, await _file(form)
    finally:
        await form.close()


def _check_origin(request: Request, settings: Settings) -> None:
    """Rejects a form from a page of another site: browsers send these without a preflight."""
    origin = request.headers.get("origin")
    is_allowed = origin in settings.cors_origins or "*" in settings.cors_origins
    is_own = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    if not is_own and not is_allowed:
        raise ServerError(
            "`server` must get forms from programs or its own page, got one from another site's "
            "page. Send it from a program.",
            code="server-host",
        )


async def _parse(request: Request, content: bytes) -> FormData:
    async def parts() -> AsyncGenerator[bytes, None]:
        yield content

    parser = MultiPartParser(
        request.headers, parts(), max_files=1, max_fields=_MAX_FIELDS,
        max_part_size=_MAX_FIELD_BYTES,
    )  # fmt: skip
    return await parser.parse()


def _checked(form: FormData, wanted: type[_Form]) -> _Form:
    given: dict[str, str | list[str]] = {}
    for name in form:
        values = [value for value in form.getlist(name) if isinstance(value, str)]
        if name != "file" and values:
            given[name] = values if name.endswith("[]") else values[-1]
    try:
        return wanted.model_validate_strings(given, strict=False)
    except ValidationError as failure:
        raise field_error(failure.errors(include_url=False, include_context=False)) from failure


async def _file(form: FormData) -> bytes:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise RequestError(
            "`file` must be present as a file, got none. Send the audio.",
            code="request-field",
            parameter="file",
        )
    return await file.read()
