import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from npu_llm.errors import OptionError
from npu_llm.serving.http.middleware import Traces

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ASKED = {"messages": [{"role": "user", "content": "the secret"}], "max_tokens": 3, "n": 2}


def test_each_request_is_a_span_with_figures_and_without_words(serve):
    exporter = InMemorySpanExporter()
    traces = Traces(SimpleSpanProcessor(exporter))
    with serve("plain", traces=traces) as server:
        place = f"{server.url}/v1/chat/completions"
        httpx.post(
            place, json=ASKED, headers={"traceparent": PARENT, "x-request-id": "a1"}, timeout=60
        )
        httpx.post(place, json={"messages": []}, timeout=60)
        httpx.get(f"{server.url}/health", timeout=60)
    answered, refused = exporter.get_finished_spans()
    assert answered.name == "POST /v1/chat/completions"
    assert f"{answered.context.trace_id:032x}" in PARENT
    assert f"{answered.parent.span_id:016x}" in PARENT
    figures = dict(answered.attributes)
    assert figures["http.response.status_code"] == 200
    assert figures["gen_ai.request.model"] == "plain"
    assert figures["gen_ai.usage.input_tokens"] > 3
    assert 0 < figures["gen_ai.usage.output_tokens"] <= 6
    assert figures["gen_ai.latency.time_to_first_token"] > 0
    assert figures["npu_llm.request"] == "a1"
    assert "secret" not in answered.to_json()
    assert (refused.attributes["http.response.status_code"], refused.parent) == (400, None)


def test_spans_reach_a_collector_before_the_server_ends(serve):
    got = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        traces = Traces.to(f"http://127.0.0.1:{collector.server_port}/v1/traces")
        with serve("plain", traces=traces) as server:
            httpx.get(f"{server.url}/v1/models", timeout=60)
        collector.shutdown()
    ((path, content),) = got
    assert path == "/v1/traces"
    assert b"GET /v1/models" in content


def test_what_cannot_be_traced_is_told(monkeypatch):
    with pytest.raises(OptionError, match="traces-endpoint"):
        Traces.to("localhost:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(OptionError, match=r"npu-llm\[otel\].*missing-otel"):
        Traces.to("http://localhost:4318/v1/traces")
