"""Errors as OpenAI's clients expect them: status, type, message, parameter and our code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse

from npu_llm.errors import ContextError, OptionError, ServerError
from npu_runtime.errors import NpuError

__all__ = ["RequestError", "error_content", "error_response", "field_error", "status_of"]

_RETRY_AFTER_S = 1
_STATUS = {
    "chat-template": 400,
    "model-endpoint": 400,
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


class RequestError(OptionError):
    """An invalid request.

    Attributes:
        parameter: the invalid field; None for the request as a whole.
    """

    def __init__(self, message: str, *, code: str, parameter: str | None = None) -> None:
        super().__init__(message, code=code)
        self.parameter = parameter


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


def error_content(error: BaseException) -> dict[str, Any]:
    """Returns the body for an error; internal failures keep their details to the log."""
    status = status_of(error)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    content: dict[str, Any] = {
        "message": str(error),
        "type": kind,
        "param": getattr(error, "parameter", None),
        "code": getattr(error, "code", None),
    }
    if not isinstance(error, NpuError):
        failure = ServerError(
            "server: must answer each request; got a failure that its log tells. Ask again.",
            code="server-failure",
        )
        content |= {"message": str(failure), "code": failure.code}
    return {"error": content}


def error_response(error: BaseException) -> JSONResponse:
    """Returns the response for an error."""
    status = status_of(error)
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(_RETRY_AFTER_S)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    return JSONResponse(error_content(error), status_code=status, headers=headers)


def field_error(details: Sequence[Mapping[str, Any]]) -> RequestError:
    """Returns the error for the first of pydantic's findings."""
    first = details[0]
    place = ".".join(str(part) for part in first["loc"]) or "body"
    if first["type"] == "extra_forbidden":
        return RequestError(
            f"{place}: must be a field that this server supports; got another. Omit it.",
            code="request-unsupported",
            parameter=place,
        )
    received = "nothing" if first["type"] == "missing" else _shown(first.get("input"))
    rule = str(first["msg"]).rstrip(".")
    return RequestError(
        f"{place}: must be as the interface says: {rule[:1].lower()}{rule[1:]}; got {received}. "
        "Change it.",
        code="request-field",
        parameter=place,
    )


def _shown(value: object) -> str:
    """Returns a short form of a value for a message, without prompts."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)[:40]
    return f"a {type(value).__name__}"
