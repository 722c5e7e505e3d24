"""Errors in each protocol's form: status, type, message, parameter and code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from starlette.responses import JSONResponse

from npu_llm.errors import ContextError, OptionError, ServerError
from npu_llm.serving.http.streaming import event
from npu_llm.serving.request_error import RequestError
from npu_runtime.errors import NpuError

__all__ = [
    "Protocol",
    "error_content",
    "error_event",
    "error_response",
    "field_error",
    "protocol_of",
    "status_of",
]

Protocol = Literal["openai", "anthropic", "ollama"]

_RETRY_AFTER_S = 1
_STATUS = {
    "chat-template": 400,
    "model-endpoint": 400,
    "request-method": 405,
    "request-size": 413,
    "request-time": 408,
    "request-type": 415,
    "server-busy": 429,
    "server-host": 403,
    "server-key": 401,
    "server-stopping": 503,
    "unknown-model": 404,
    "unknown-path": 404,
}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {413: "request_too_large", 503: "overloaded_error"}


def protocol_of(path: str) -> Protocol:
    """Returns the protocol of a path."""
    if path.startswith("/api/"):
        return "ollama"
    return "anthropic" if path.startswith("/v1/messages") else "openai"


def status_of(error: BaseException) -> int:
    """Returns the HTTP status for an error."""
    if isinstance(error, NpuError):
        known = _STATUS.get(error.code)
        if known is not None:
            return known
        if isinstance(error, (OptionError, ContextError)):
            return 400
        if isinstance(error, ServerError):
            return 503
    return 500


def error_content(error: BaseException, protocol: Protocol = "openai") -> dict[str, Any]:
    """Returns the body for an error; details of internal failures are only logged."""
    status = status_of(error)
    if not isinstance(error, NpuError):
        error = ServerError(
            "`server` must answer each request, got an internal failure. See its log, or retry.",
            code="server-failure",
        )
    if protocol == "ollama":
        return {"error": str(error)}
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    content: dict[str, Any] = {"message": str(error), "type": kind}
    if protocol == "anthropic":
        kind = "api_error" if status >= 500 else kind
        return {"type": "error", "error": {**content, "type": _ANTHROPIC_TYPES.get(status, kind)}}
    content |= {"param": getattr(error, "parameter", None), "code": error.code}
    return {"error": content}


def error_event(error: BaseException, protocol: Protocol) -> bytes:
    """Returns the event that ends a stream with an error."""
    content = error_content(error, protocol)
    if protocol == "ollama":
        return json.dumps(content).encode() + b"\n"
    return event(content, name="error" if protocol == "anthropic" else None)


def error_response(
    error: BaseException,
    protocol: Protocol = "openai",
    *,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Returns the response for an error."""
    status = status_of(error)
    found = dict(headers or {})
    if status in (429, 503):
        found["Retry-After"] = str(_RETRY_AFTER_S)
    if status == 401:
        found["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        found["Connection"] = "close"  # the rest of the body is not read
    return JSONResponse(error_content(error, protocol), status_code=status, headers=found)


def field_error(details: Sequence[Mapping[str, Any]]) -> RequestError:
    """Returns the error for pydantic's first finding."""
    first = details[0]
    place = ".".join(str(part) for part in first["loc"]) or "body"
    received = "nothing" if first["type"] == "missing" else _shown(first.get("input"))
    rule = str(first["msg"]).rstrip(".")
    return RequestError(
        f"`{place}` must be valid: {rule[:1].lower()}{rule[1:]}, got {received}. Change it.",
        code="request-field",
        parameter=place,
    )


def _shown(value: object) -> str:
    """Returns a short form of a value for a message, without prompts."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)[:40]
    return f"a {type(value).__name__}"
