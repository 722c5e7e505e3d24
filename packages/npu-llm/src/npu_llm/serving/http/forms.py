"""Reads a form with a file within bounds of size and time, and checks its other fields."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from npu_llm.errors import ServerError
from npu_llm.serving.http.bodies import FormBody
from npu_llm.serving.http.receiving import read_bytes
from npu_llm.serving.http.refusals import RequestError, field_error

__all__ = ["read_form"]

_Wanted = TypeVar("_Wanted", bound=FormBody)

_MOST_FIELDS = 64
_MOST_FIELD_BYTES = 64 << 10


async def read_form(
    request: Request, wanted: type[_Wanted], *, most_bytes: int, seconds: float
) -> tuple[_Wanted, bytes]:
    """Returns the fields of a form, and the content of its `file`.

    Args:
        request: whose body has not been read.
        wanted: what its fields are.
        most_bytes: how long it may be as a whole.
        seconds: how long it may take to come.

    Raises:
        RequestError: [request-type], [request-size], [request-time], [request-form],
            [request-field], [request-unsupported].
        ServerError: [server-host] for a form of another site's page.
        ClientDisconnect: if the client leaves.
    """
    _check_origin(request)
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise RequestError(
            f"content-type: must be multipart/form-data; got {kind[:80] or 'none'!r}. Send the "
            "sound as a form's file.",
            code="request-type",
        )
    content = await read_bytes(request, most_bytes=most_bytes, seconds=seconds)
    try:
        form = await _parse(request, content)
    except (MultiPartException, KeyError, ValueError) as failure:
        raise RequestError(
            f"body: must be a form of at most {_MOST_FIELDS} fields and one file; got another "
            f"({str(failure)[:120] or type(failure).__name__}). Mend it.",
            code="request-form",
        ) from failure
    try:
        return _checked(form, wanted), await _file(form)
    finally:
        await form.close()


def _check_origin(request: Request) -> None:
    """Refuses a form that a page of another site sends: browsers ask nobody before they do."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise ServerError(
            "server: takes forms of programs and of its own page; got one of another site's page. "
            "Send it from a program.",
            code="server-host",
        )


async def _parse(request: Request, content: bytes) -> FormData:
    async def parts() -> AsyncGenerator[bytes, None]:
        yield content

    parser = MultiPartParser(
        request.headers, parts(), max_files=1, max_fields=_MOST_FIELDS,
        max_part_size=_MOST_FIELD_BYTES,
    )  # fmt: skip
    return await parser.parse()


def _checked(form: FormData, wanted: type[_Wanted]) -> _Wanted:
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
            "file: must be there, as a file; got none. Send the sound.",
            code="request-field",
            parameter="file",
        )
    return await file.read()
