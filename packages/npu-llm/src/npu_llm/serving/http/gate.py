"""Gate: who may ask, the number of each request, its line in the log, and errors as responses."""

from __future__ import annotations

import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from npu_llm.errors import ServerError
from npu_llm.serving.http.refusals import refusal_of
from npu_llm.serving.http.settings import Settings, is_local
from npu_llm.serving.http.traces import Traces

__all__ = ["LOG", "Gate", "JsonLines", "noted"]

LOG = logging.getLogger("npu_llm.serving")

_FREE = ("/", "/health", "/favicon.ico")
_QUIET = ("/health", "/metrics")  # asked every few seconds
_NUMBER = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def noted(scope: Scope) -> MutableMapping[str, Any]:
    """Returns what a request's line in the log will have; figures only, never what was said."""
    notes: MutableMapping[str, Any] = scope.setdefault("npu_llm.notes", {})
    return notes


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        content = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "notes", {}),
        }
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content)


class Gate:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, settings: Settings, traces: Traces | None = None) -> None:
        self._app = app
        self._settings = settings
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, or answers it; see ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        number = given if _NUMBER.fullmatch(given) else uuid.uuid4().hex
        scope["npu_llm.request"] = number
        status: list[int] = []

        async def numbered(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
                MutableHeaders(scope=message)["x-request-id"] = number
            await send(message)

        started = time.perf_counter()
        span = None
        if self._traces is not None and scope["path"] not in _QUIET:
            span = self._traces.start(scope["method"], _path(scope), headers)
        try:
            self._check(scope, headers)
            await self._app(scope, receive, numbered)
        except Exception as failure:  # nothing that is asked ends the server
            if not isinstance(failure, ServerError):
                LOG.exception("a request failed", extra={"notes": {"request": number}})
            if not status:
                await refusal_of(failure)(scope, receive, numbered)
        finally:
            notes = _figures(scope, number, status, time.perf_counter() - started)
            self._log(notes)
            if self._traces is not None and span is not None:
                self._traces.end(span, notes)

    def _check(self, scope: Scope, headers: Headers) -> None:
        settings = self._settings
        if settings.checks_host and not is_local(_name_of(headers.get("host", ""))):
            # A page of another site whose name was made to lead here.
            raise ServerError(
                "server: answers requests for this machine by its own names; got another in the "
                "Host header. Use 127.0.0.1 or localhost, or start it with --api-key.",
                code="server-host",
            )
        if settings.api_key is None or scope["path"] in _FREE:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        is_known = hmac.compare_digest(key.strip().encode(), settings.api_key.encode())
        if scheme.lower() != "bearer" or not is_known:
            raise ServerError(
                "server: must be asked with its key; got "
                f"{'another' if key else 'none'}. Send Authorization: Bearer KEY.",
                code="server-key",
            )

    def _log(self, notes: dict[str, Any]) -> None:
        level = logging.DEBUG if notes["path"] in _QUIET else logging.INFO
        text = " ".join(f"{name}={value}" for name, value in notes.items())
        LOG.log(level, "%s", "request" if self._settings.log_format == "json" else text,
                extra={"notes": notes})  # fmt: skip


def _figures(scope: Scope, number: str, status: list[int], seconds: float) -> dict[str, Any]:
    """Returns what is kept of a request."""
    return {
        "request": number,
        "method": scope["method"],
        "path": _path(scope),
        "status": status[0] if status else 499,  # as nginx calls a client that left
        "seconds": round(seconds, 4),
        **noted(scope),
    }


def _path(scope: Scope) -> str:
    """Returns the path as it was asked for, escaped: decoded, it may have line breaks."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("ascii", "backslashreplace")[:200]


def _name_of(host: str) -> str:
    """Returns the name in a Host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
