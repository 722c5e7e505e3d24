"""Middleware: authentication, request ids, the access log and traces."""

from __future__ import annotations

import asyncio
import hmac
import importlib.util
import json
import logging
import re
import time
import uuid
from collections.abc import Mapping, MutableMapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from npu_llm.errors import OptionError, ServerError
from npu_llm.serving.http.errors import error_response, protocol_of
from npu_llm.serving.http.request_body import IGNORED
from npu_llm.serving.http.settings import Settings, is_local

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

__all__ = ["LOG", "JsonLines", "Middleware", "Traces", "log_fields"]

LOG = logging.getLogger("npu_llm.serving")

_FREE = ("/", "/health", "/favicon.ico")
_QUIET = ("/health", "/metrics")  # requested every few seconds
_IGNORED_HEADER = "x-ignored-fields"
_MAX_IGNORED = 20  # maximum number of fields named in the header
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]|,")
_NUMBER = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def log_fields(scope: Scope) -> MutableMapping[str, Any]:
    """Returns the fields of a request's line in the log: figures, never prompts or answers."""
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


class Middleware:
    """Authenticates, numbers, logs and traces each request of an application."""

    def __init__(self, app: ASGIApp, settings: Settings, traces: Traces | None = None) -> None:
        self._app = app
        self._settings = settings
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request to the application, or rejects it; see ASGI."""
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
                found = MutableHeaders(scope=message)
                found["x-request-id"] = number
                if ignored := scope.get(IGNORED):
                    found[_IGNORED_HEADER] = _listed(ignored)
            await send(message)

        started = time.perf_counter()
        span = None
        if self._traces is not None and scope["path"] not in _QUIET:
            span = self._traces.start(scope["method"], _path(scope), headers)
        try:
            self._check(scope, headers)
            await self._app(scope, receive, numbered)
        except asyncio.CancelledError:  # the server is ending
            LOG.warning("a request was cut", extra={"notes": {"request": number}})
        except Exception as failure:  # a request must not end the server
            if not isinstance(failure, ServerError):
                LOG.exception("a request failed", extra={"notes": {"request": number}})
            if not status:
                response = error_response(failure, protocol_of(scope["path"]))
                await response(scope, receive, numbered)
        finally:
            notes = _log_record(scope, number, status, time.perf_counter() - started)
            self._log(notes)
            if self._traces is not None and span is not None:
                self._traces.end(span, notes)

    def _check(self, scope: Scope, headers: Headers) -> None:
        settings = self._settings
        if settings.checks_host and not is_local(_name_of(headers.get("host", ""))):
            # DNS rebinding: a page of another site whose name resolves to this machine.
            raise ServerError(
                "`server` must be addressed by a name of this machine, got another in the Host "
                "header. Use 127.0.0.1 or localhost, or start it with --api-key.",
                code="server-host",
            )
        if not settings.api_keys or scope["path"] in _FREE:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")  # Anthropic's
        given = key.strip().encode()
        # Every key is compared, so that the time does not reveal a match.
        if not sum(hmac.compare_digest(given, one.encode()) for one in settings.api_keys):
            raise ServerError(
                f"`server` must be called with its API key, got {'another' if key else 'none'}. "
                "Send Authorization: Bearer KEY.",
                code="server-key",
            )

    def _log(self, notes: dict[str, Any]) -> None:
        level = logging.DEBUG if notes["path"] in _QUIET else logging.INFO
        text = " ".join(f"{name}={value}" for name, value in notes.items())
        LOG.log(level, "%s", "request" if self._settings.log_format == "json" else text,
                extra={"notes": notes})  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    """Returns the names of fields for a header: ASCII, limited in number."""
    shown = [name[:80].encode("ascii", "replace").decode() for name in names[:_MAX_IGNORED]]
    text = ", ".join(_UNPRINTABLE.sub("?", name) for name in shown)
    return text if len(names) <= _MAX_IGNORED else f"{text}, ..."


def _log_record(scope: Scope, number: str, status: list[int], seconds: float) -> dict[str, Any]:
    """Returns the fields of a request's line in the log."""
    return {
        "request": number,
        "method": scope["method"],
        "path": _path(scope),
        "status": status[0] if status else 499,  # nginx's status for a client that disconnected
        "seconds": round(seconds, 4),
        **log_fields(scope),
    }


def _path(scope: Scope) -> str:
    """Returns the escaped path of the request; decoded, it could contain line breaks."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("ascii", "backslashreplace")[:200]


def _name_of(host: str) -> str:
    """Returns the name in a Host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


# Fields of a request's line in the log -> names of OpenTelemetry's conventions.
_NAMES = {
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "first_token_seconds": "gen_ai.latency.time_to_first_token",
    "request": "npu_llm.request",
}


class Traces:
    """Spans of one server's requests: figures, never prompts or answers."""

    def __init__(self, processor: SpanProcessor) -> None:
        """Creates a tracer whose finished spans go to the processor."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        version = metadata.version("npu-llm")
        about = Resource.create({"service.name": "npu-llm", "service.version": version})
        self._provider = TracerProvider(resource=about)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("npu_llm.serving", version)
        self._context = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str) -> Traces:
        """Returns traces that are sent to a collector by OTLP over HTTP.

        Args:
            endpoint: address such as http://127.0.0.1:4318/v1/traces.

        Raises:
            OptionError: [traces-endpoint] for another address, [missing-otel].
        """
        if not endpoint.startswith(("http://", "https://")):
            raise OptionError(
                f"`--otlp-traces-endpoint` must be an HTTP address, got {endpoint[:80]!r}. Pass "
                "one such as http://127.0.0.1:4318/v1/traces.",
                code="traces-endpoint",
            )
        if not _is_installed("opentelemetry.exporter.otlp.proto.http"):
            raise OptionError(
                "--otlp-traces-endpoint: OpenTelemetry must be installed, got none. Install it: "
                "pip install 'npu-llm[otel]'.",
                code="missing-otel",
            )
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))

    def start(self, method: str, path: str, headers: Headers) -> Span:
        """Starts a request's span, in the trace of its headers, if any."""
        from opentelemetry.trace import SpanKind

        context = self._context.extract(dict(headers))
        return self._tracer.start_span(f"{method} {path}", context, kind=SpanKind.SERVER)

    def end(self, span: Span, notes: Mapping[str, Any]) -> None:
        """Ends a span with the figures of its log line."""
        from opentelemetry.trace import StatusCode

        for name, value in notes.items():
            if name in _NAMES:
                span.set_attribute(_NAMES[name], value)
        if notes["status"] >= 500:
            span.set_status(StatusCode.ERROR)
        span.end()

    def close(self) -> None:
        """Sends the remaining spans."""
        self._provider.shutdown()


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # the package is missing or blocked
        return False
