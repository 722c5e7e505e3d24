"""Service: the models, settings and metrics that endpoints share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from npu_llm.serving.answer import Answer
from npu_llm.serving.generation import Choice, Conversation, Generation, TextRequest
from npu_llm.serving.http.errors import error_event, protocol_of, status_of
from npu_llm.serving.http.middleware import LOG, log_fields
from npu_llm.serving.http.request_body import read_body, read_form
from npu_llm.serving.http.schemas.body import Body, FormBody
from npu_llm.serving.http.settings import Settings
from npu_llm.serving.http.streaming import ClientLeftError, EventStream, until_disconnect
from npu_llm.serving.media import with_media
from npu_llm.serving.models.registry import ModelRegistry
from npu_llm.serving.models.served_model import ServedModel

__all__ = ["Metrics", "Service", "service_of"]

_Wanted = TypeVar("_Wanted", bound=Body)
_Form = TypeVar("_Form", bound=FormBody)


class GenerationBody(Protocol):
    """The body of a request for text.

    Attributes:
        model: the name of the model; None for the first.
        stream: whether the answer is streamed.
    """

    @property
    def model(self) -> str | None: ...

    @property
    def stream(self) -> bool: ...


class AnswerWriter(Protocol):
    """Formats answers for a protocol."""

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, Any]:
        """Returns the object for all answers."""
        ...

    def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yields the events of the answers."""
        ...


class Service:
    """A server's models, settings and metrics.

    Attributes:
        registry: the models.
        settings: the server's settings.
        metrics: metrics of its answers.
        started: start time in seconds since 1970.
    """

    def __init__(self, registry: ModelRegistry, settings: Settings) -> None:
        self.registry = registry
        self.settings = settings
        self.metrics = Metrics(registry)
        self.started = int(time.time())

    async def read(self, request: Request, wanted: type[_Wanted]) -> _Wanted:
        """Returns a request's body; raises the errors of read_body."""
        return await read_body(request, wanted, self.settings)

    async def read_form(self, request: Request, wanted: type[_Form]) -> tuple[_Form, bytes]:
        """Returns a form's fields and its file; raises the errors of read_form."""
        return await read_form(request, wanted, self.settings)

    async def answer(
        self,
        request: Request,
        body: GenerationBody,
        asked: TextRequest,
        writer: AnswerWriter,
        *,
        media_type: str = "text/event-stream",
    ) -> Response:
        """Answers with one JSON object, or with a stream.

        Args:
            request: the HTTP request.
            body: its body.
            asked: the request without its protocol.
            writer: formats the answers.
            media_type: media type of the stream.
        """
        stack = AsyncExitStack()
        try:
            served = await stack.enter_async_context(self.registry.use(body.model, ServedModel))
            start = self._start(served, asked)
            generation = await until_disconnect(request, start)
        except ClientLeftError:
            await stack.aclose()
            return Response(status_code=499)  # the client has left
        except BaseException:
            await stack.aclose()
            raise

        async def close() -> None:
            generation.close()
            self._note(request, generation)
            await stack.aclose()

        if body.stream:
            stream = _with_errors(request, writer.events(generation))
            return EventStream(stream, close, media_type=media_type)
        try:
            choices = await until_disconnect(request, generation.choices())
            return JSONResponse(writer.whole(generation, choices))
        except ClientLeftError:
            return Response(status_code=499)
        finally:
            await close()

    async def _start(self, served: ServedModel, asked: TextRequest) -> Generation:
        """Submits a request after its images and sounds are read."""
        may_fetch = self.settings.fetches_media
        prompts = [
            replace(one, messages=await with_media(one.messages, may_fetch=may_fetch))
            if isinstance(one, Conversation)
            else one
            for one in asked.prompts
        ]
        return await Generation.start(served, replace(asked, prompts=prompts))

    def _note(self, request: Request, generation: Generation) -> None:
        name, answers, usage = generation.served.name, generation.answers, generation.usage()
        notes = log_fields(request.scope)
        notes["model"] = name
        notes["prompt_tokens"] = usage.prompt
        notes["completion_tokens"] = usage.answer
        firsts = [one.read_s for one in answers if one.first_s is not None]
        if firsts:
            notes["first_token_seconds"] = round(min(firsts), 4)
        for answer in answers:
            self.metrics.count(name, usage.prompt // len(answers), answer)


def service_of(request: Request) -> Service:
    """Returns the service that a request was sent to."""
    service: Service = request.app.state.service
    return service


async def _with_errors(
    request: Request, events: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yields events; an exception becomes one in the form of the request's protocol."""
    try:
        async for one in events:
            yield one
    except Exception as failure:  # noqa: BLE001  # the status was sent already
        if status_of(failure) == 500:
            notes = {"request": request.scope.get("npu_llm.request")}
            LOG.exception("a request failed", extra={"notes": notes})
        yield error_event(failure, protocol_of(request.url.path))


_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40)
_BETWEEN = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5)
_WHOLE = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)


class Metrics:
    """Metrics of a server since its start."""

    def __init__(self, registry: ModelRegistry) -> None:
        self._collector = collector = CollectorRegistry()
        label = ["model_name"]

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"vllm:{name}", text, label, registry=collector, buckets=buckets)

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(f"vllm:{name}", text, [*label, *more], registry=collector)

        self._time_to_first_token = histogram(
            "time_to_first_token_seconds", "From the request to its first token.", _FIRST
        )
        self._time_per_token = histogram(
            "time_per_output_token_seconds", "Mean time of an answer's further tokens.", _BETWEEN
        )
        self._latency = histogram(
            "e2e_request_latency_seconds", "From the request to its last token.", _WHOLE
        )
        self._prompt = counter("prompt_tokens", "Tokens of prompts.")
        self._answer = counter("generation_tokens", "Tokens of answers.")
        self._cached = counter("prefix_cache_hits", "Tokens of prompts that were in the cache.")
        self._queries = counter(
            "prefix_cache_queries", "Tokens of prompts looked for in the cache."
        )
        self._finished = counter("request_success", "Answers by how they ended.", "finished_reason")
        collector.register(_Engines(registry))

    def count(self, model: str, prompt_tokens: int, answer: Answer) -> None:
        """Counts a completed or abandoned answer."""
        self._prompt.labels(model).inc(prompt_tokens)
        self._queries.labels(model).inc(prompt_tokens)
        self._cached.labels(model).inc(answer.cached_tokens)
        self._answer.labels(model).inc(answer.tokens)
        self._finished.labels(model, answer.finish or "abort").inc()
        if answer.first_s is None or answer.last_s is None:
            return
        self._time_to_first_token.labels(model).observe(answer.read_s)
        self._latency.labels(model).observe(answer.last_s - answer.arrived_s)
        if answer.tokens > 1:
            passed = answer.written_s
            self._time_per_token.labels(model).observe(passed / (answer.tokens - 1))

    def count_vectors(self, model: str, tokens: int, seconds: float) -> None:
        """Counts an answered request for vectors."""
        self._prompt.labels(model).inc(tokens)
        self._finished.labels(model, "stop").inc()
        self._latency.labels(model).observe(seconds)

    def count_transcript(self, model: str, seconds: float) -> None:
        """Counts a transcription."""
        self._finished.labels(model, "stop").inc()
        self._latency.labels(model).observe(seconds)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus's format."""
        return generate_latest(self._collector)


class _Engines:
    """Metrics of the engines' current work."""

    def __init__(self, registry: ModelRegistry) -> None:
        self._models = registry

    def collect(self) -> Iterator[Any]:
        """Yields the metrics; see prometheus_client's collectors."""
        running = GaugeMetricFamily(
            "vllm:num_requests_running", "Running requests.", labels=["model_name"]
        )
        waiting = GaugeMetricFamily(
            "vllm:num_requests_waiting", "Waiting requests.", labels=["model_name"]
        )
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "Share of the cache in use, 0 to 1.", labels=["model_name"]
        )
        put_back = CounterMetricFamily(
            "vllm:num_preemptions", "Number of preemptions.", labels=["model_name"]
        )
        for name, served in list(self._models.loaded.items()):
            if not isinstance(served, ServedModel):
                waiting.add_metric([name], served.waiting)
                continue
            state = served.engine.state()
            running.add_metric([name], state.running)
            waiting.add_metric([name], state.waiting)
            usage.add_metric([name], state.usage.used)
            put_back.add_metric([name], state.num_preemptions)
        yield from (running, waiting, usage, put_back)
