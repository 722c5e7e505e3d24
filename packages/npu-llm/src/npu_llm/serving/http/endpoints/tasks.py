"""/v1/embeddings, /rerank, /score and /v1/audio/transcriptions: embeddings, scores, transcripts."""

from __future__ import annotations

import base64
import time
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from npu_llm.serving.http.endpoints.fields import inputs_of
from npu_llm.serving.http.middleware import log_fields
from npu_llm.serving.http.schemas.openai import (
    EmbeddingsBody,
    RerankBody,
    ScoreBody,
    TranscriptionBody,
)
from npu_llm.serving.http.service import service_of
from npu_llm.serving.http.streaming import ClientLeftError, until_disconnect
from npu_llm.serving.models.task_models import (
    Scores,
    ServedEncoder,
    ServedReranker,
    ServedSpeech,
    Vectors,
)
from npu_llm.serving.request_error import RequestError
from npu_llm.speech.transcript import Times, TranscriptOptions, write_transcript

if TYPE_CHECKING:
    from npu_llm.speech.transcriber import Transcript

__all__ = ["embed", "embeddings", "rerank", "score", "transcriptions"]

_MAX_TEXTS = 2048  # OpenAI's


async def embeddings(request: Request) -> Response:
    """Answers with an embedding for each text."""
    service = service_of(request)
    body = await service.read(request, EmbeddingsBody)
    texts = inputs_of("input", body.input, most=_MAX_TEXTS)
    found = await embed(request, body.model, texts, dimensions=body.dimensions)
    if isinstance(found, Response):
        return found
    as_text = body.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64(vector) if as_text else vector.tolist(),
        }
        for index, vector in enumerate(found.values)
    ]
    usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
    content = {"object": "list", "data": data, "model": found.model, "usage": usage}
    return JSONResponse(content)


async def embed(
    request: Request, model: str | None, texts: list[Any], *, dimensions: int | None = None
) -> Vectors | Response:
    """Returns the embeddings of texts, or an empty response if the client has disconnected.

    Args:
        request: the request; its body was read.
        model: the request's name of the model.
        texts: at least one; text or tokens.
        dimensions: see ServedEncoder.embed.
    """
    service = service_of(request)
    started = time.perf_counter()
    async with service.registry.use(model, ServedEncoder) as served:
        work = served.embed(texts, dimensions=dimensions)
        try:
            found = await until_disconnect(request, work)
        except ClientLeftError:
            return Response(status_code=499)  # the client has disconnected
    log_fields(request.scope).update(model=served.name, prompt_tokens=found.tokens)
    service.metrics.count_vectors(served.name, found.tokens, time.perf_counter() - started)
    return found


async def rerank(request: Request) -> Response:
    """Ranks documents by relevance to a query."""
    service = service_of(request)
    body = await service.read(request, RerankBody)
    documents = [one if isinstance(one, str) else one.text for one in body.documents]
    inputs_of("documents", documents, most=_MAX_TEXTS)
    scored = await _scores(request, body.model, [(body.query, one) for one in documents])
    if isinstance(scored, Response):
        return scored
    best = sorted(range(len(documents)), key=lambda index: -scored.values[index])[: body.top_n]
    results: list[dict[str, Any]] = []
    for index in best:
        result: dict[str, Any] = {"index": index, "relevance_score": scored.values[index]}
        if body.return_documents:
            result["document"] = {"text": documents[index]}
        results.append(result)
    usage = {"total_tokens": scored.tokens, "prompt_tokens": scored.tokens}
    return JSONResponse(
        {"id": f"rerank-{uuid.uuid4().hex}", "model": scored.model, "usage": usage,
         "results": results}
    )  # fmt: skip


async def score(request: Request) -> Response:
    """Returns similarity scores of pairs of texts."""
    service = service_of(request)
    body = await service.read(request, ScoreBody)
    first = inputs_of("text_1", body.text_1, most=_MAX_TEXTS)
    second = inputs_of("text_2", body.text_2, most=_MAX_TEXTS)
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        raise RequestError(
            "`text_2` must have as many texts as text_1, or text_1 must be one, got "
            f"{len(second)} for {len(first)}. Pair them.",
            code="request-field",
            parameter="text_2",
        )
    scored = await _scores(request, body.model, list(zip(first, second, strict=True)))
    if isinstance(scored, Response):
        return scored
    data = [
        {"index": index, "object": "score", "score": value}
        for index, value in enumerate(scored.values)
    ]
    usage = {"prompt_tokens": scored.tokens, "total_tokens": scored.tokens}
    return JSONResponse(
        {"id": f"score-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()),
         "model": scored.model, "data": data, "usage": usage}
    )  # fmt: skip


async def _scores(
    request: Request, model: str | None, pairs: list[tuple[str, str]]
) -> Scores | Response:
    """Returns the scores of pairs: from a cross-encoder, or cosines of an encoder's embeddings."""
    registry = service_of(request).registry
    if not registry.has(model, ServedReranker):
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        found = await embed(request, model, texts)
        if isinstance(found, Response):
            return found
        vectors = torch.nn.functional.normalize(found.values.float())
        of = {text: vectors[index] for index, text in enumerate(texts)}
        values = [float(of[one] @ of[other]) for one, other in pairs]
        return Scores(values, found.tokens, found.model)
    async with registry.use(model, ServedReranker) as served:
        try:
            scored = await until_disconnect(request, served.score(pairs))
        except ClientLeftError:
            return Response(status_code=499)
    log_fields(request.scope).update(model=served.name, prompt_tokens=scored.tokens)
    return scored


def _base64(vector: torch.Tensor) -> str:
    """Returns little-endian float32 in base64, as OpenAI's clients expect."""
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()


async def transcriptions(request: Request) -> Response:
    """Transcribes a WAV file."""
    service = service_of(request)
    body, content = await service.read_form(request, TranscriptionBody)
    options = TranscriptOptions(
        language=body.language, times=_times(body), temperature=body.temperature
    )
    started = time.perf_counter()
    async with service.registry.use(body.model, ServedSpeech) as served:
        try:
            found = await until_disconnect(request, served.transcribe(content, options))
        except ClientLeftError:
            return Response(status_code=499)  # the client has disconnected
    log_fields(request.scope).update(model=served.name, sound_seconds=round(found.seconds, 2))
    service.metrics.count_transcript(served.name, time.perf_counter() - started)
    kind = body.response_format
    if kind in ("srt", "vtt"):
        return PlainTextResponse(write_transcript(found.text, found.passages, kind) + "\n")
    if kind == "text":
        return PlainTextResponse(found.text.strip() + "\n")
    return JSONResponse(_content(found, options, is_whole=kind == "verbose_json"))


def _times(body: TranscriptionBody) -> Times | None:
    """Returns the granularity of times; raises RequestError [request-field] for a conflict."""
    asked = body.granularities
    if asked is None:
        return None if body.response_format in ("json", "text") else "segment"
    if body.response_format != "verbose_json" or len(asked) != 1:
        raise RequestError(
            "`timestamp_granularities[]` must be one of word or segment, with response_format "
            f"verbose_json, got {len(asked)} with {body.response_format}. Change one of them.",
            code="request-field",
            parameter="timestamp_granularities[]",
        )
    return asked[0]


def _content(found: Transcript, options: TranscriptOptions, *, is_whole: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"text": found.text.strip()}
    if not is_whole:
        return content
    content |= {"task": "transcribe", "duration": found.seconds}
    if options.language is not None:
        content["language"] = options.language
    if options.times == "word":
        words = [
            {"word": one.text.strip(), "start": one.start, "end": one.end} for one in found.passages
        ]
        return {**content, "words": words}
    segments = [{"id": index, **asdict(one)} for index, one in enumerate(found.passages)]
    return {**content, "segments": segments}
