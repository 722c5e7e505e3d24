"""Figures for Prometheus, under the names that vLLM's have, so that its dashboards show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from npu_llm.serving.answers.answer import Answer
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.shelf import Shelf

__all__ = ["Measures"]

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40)
_BETWEEN = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5)
_WHOLE = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)


class Measures:
    """Counts of one server since its start."""

    def __init__(self, shelf: Shelf) -> None:
        self._registry = registry = CollectorRegistry()
        label = ["model_name"]

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"vllm:{name}", text, label, registry=registry, buckets=buckets)

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(f"vllm:{name}", text, [*label, *more], registry=registry)

        self._first = histogram(
            "time_to_first_token_seconds", "From the request to its first token.", _FIRST
        )
        self._between = histogram(
            "time_per_output_token_seconds", "Mean time of an answer's further tokens.", _BETWEEN
        )
        self._whole = histogram(
            "e2e_request_latency_seconds", "From the request to its last token.", _WHOLE
        )
        self._prompt = counter("prompt_tokens", "Tokens of prompts.")
        self._answer = counter("generation_tokens", "Tokens of answers.")
        self._cached = counter("prefix_cache_hits", "Tokens of prompts that were in the cache.")
        self._asked = counter("prefix_cache_queries", "Tokens of prompts looked for in the cache.")
        self._ended = counter("request_success", "Answers by how they ended.", "finished_reason")
        registry.register(_Engines(shelf))

    def note(self, model: str, prompt_tokens: int, answer: Answer) -> None:
        """Counts an answer that has ended, or that its client left."""
        self._prompt.labels(model).inc(prompt_tokens)
        self._asked.labels(model).inc(prompt_tokens)
        self._cached.labels(model).inc(answer.cached_tokens)
        self._answer.labels(model).inc(answer.tokens)
        self._ended.labels(model, answer.finish or "abort").inc()
        if answer.first_s is None or answer.last_s is None:
            return
        self._first.labels(model).observe(answer.first_s - answer.arrived_s)
        self._whole.labels(model).observe(answer.last_s - answer.arrived_s)
        if answer.tokens > 1:
            passed = answer.last_s - answer.first_s
            self._between.labels(model).observe(passed / (answer.tokens - 1))

    def note_vectors(self, model: str, tokens: int, seconds: float) -> None:
        """Counts a request for vectors that was answered."""
        self._prompt.labels(model).inc(tokens)
        self._ended.labels(model, "stop").inc()
        self._whole.labels(model).observe(seconds)

    def note_transcript(self, model: str, seconds: float) -> None:
        """Counts a sound that was transcribed."""
        self._ended.labels(model, "stop").inc()
        self._whole.labels(model).observe(seconds)

    def text(self) -> bytes:
        """Returns all of it as Prometheus reads it."""
        return generate_latest(self._registry)


class _Engines:
    """What the engines are doing when they are asked."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def collect(self) -> Iterator[Any]:
        """Yields the figures; see prometheus_client's collectors."""
        running = GaugeMetricFamily(
            "vllm:num_requests_running", "Requests that are answered.", labels=["model_name"]
        )
        waiting = GaugeMetricFamily(
            "vllm:num_requests_waiting", "Requests that wait.", labels=["model_name"]
        )
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "Share of the cache in use, 0 to 1.", labels=["model_name"]
        )
        put_back = CounterMetricFamily(
            "vllm:num_preemptions", "How often a request was put back.", labels=["model_name"]
        )
        for name, served in list(self._shelf.loaded.items()):
            if not isinstance(served, ServedModel):
                waiting.add_metric([name], served.waiting)
                continue
            state = served.engine.state()
            running.add_metric([name], state.running)
            waiting.add_metric([name], state.waiting)
            usage.add_metric([name], state.usage.used)
            put_back.add_metric([name], state.preemptions)
        yield from (running, waiting, usage, put_back)
