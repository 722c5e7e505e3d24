"""Traces: a span of OpenTelemetry for each request, sent to a collector."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from npu_llm.errors import OptionError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span
    from starlette.datastructures import Headers

__all__ = ["Traces"]

# What a request's line in the log calls it -> what OpenTelemetry's conventions do.
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
    """Spans of one server's requests; they hold figures, and never what was said."""

    def __init__(self, processor: SpanProcessor) -> None:
        """Takes what spans are handed to when they end."""
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
        """Returns those that are sent to a collector, by OTLP over HTTP.

        Args:
            endpoint: such as http://127.0.0.1:4318/v1/traces.

        Raises:
            OptionError: [traces-endpoint] for another address, [missing-otel].
        """
        if not endpoint.startswith(("http://", "https://")):
            raise OptionError(
                f"--otlp-traces-endpoint: must be an address of HTTP; got {endpoint[:80]!r}. Pass "
                "one such as http://127.0.0.1:4318/v1/traces.",
                code="traces-endpoint",
            )
        if not _is_there("opentelemetry.exporter.otlp.proto.http"):
            raise OptionError(
                "--otlp-traces-endpoint: OpenTelemetry must be installed; got none. Install it: "
                "pip install 'npu-llm[otel]'.",
                code="missing-otel",
            )
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))

    def start(self, method: str, path: str, headers: Headers) -> Span:
        """Starts a request's span, as part of the trace that its headers name, if they do."""
        from opentelemetry.trace import SpanKind

        context = self._context.extract(dict(headers))
        return self._tracer.start_span(f"{method} {path}", context, kind=SpanKind.SERVER)

    def end(self, span: Span, notes: Mapping[str, Any]) -> None:
        """Ends it with the figures of its line in the log."""
        from opentelemetry.trace import StatusCode

        for name, value in notes.items():
            if name in _NAMES:
                span.set_attribute(_NAMES[name], value)
        if notes["status"] >= 500:
            span.set_status(StatusCode.ERROR)
        span.end()

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # the package that it would be in; one that is barred
        return False
