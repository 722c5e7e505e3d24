"""/v1/embeddings and /v1/audio/transcriptions: vectors of texts, and transcripts."""

from __future__ import annotations

import base64
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from npu_llm.serving.http.endpoints.sampling import inputs_of
from npu_llm.serving.http.errors import RequestError
from npu_llm.serving.http.middleware import log_fields
from npu_llm.serving.http.schemas import EmbeddingsBody, TranscriptionBody
from npu_llm.serving.http.service import service_of
from npu_llm.serving.http.streaming import ClientLeftError, until_disconnect
from npu_llm.serving.models.task_models import ServedEncoder, ServedSpeech
from npu_llm.speech.transcript import Times, TranscriptOptions, write_transcript

if TYPE_CHECKING:
    from npu_llm.speech.transcriber import Transcript

__all__ = ["embeddings", "transcriptions"]

_MAX_TEXTS = 2048  # OpenAI's


async def embeddings(request: Request) -> Response:
    """Answers with a vector for each text."""
    service = service_of(request)
    body = await service.read(request, EmbeddingsBody)
    texts = inputs_of("input", body.input, most=_MAX_TEXTS)
    started = time.perf_counter()
    async with service.registry.use(body.model, ServedEncoder) as served:
        work = served.embed(texts, dimensions=body.dimensions)
        try:
            found = await until_disconnect(request, work)
        except ClientLeftError:
            return Response(status_code=499)  # nobody reads it
    log_fields(request.scope).update(model=served.name, prompt_tokens=found.tokens)
    service.metrics.count_vectors(served.name, found.tokens, time.perf_counter() - started)
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
    content = {"object": "list", "data": data, "model": served.name, "usage": usage}
    return JSONResponse(content)


def _base64(vector: torch.Tensor) -> str:
    """Returns float32, the least byte first, as OpenAI's clients read it."""
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()


async def transcriptions(request: Request) -> Response:
    """Answers with what is said in a WAV file."""
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
            return Response(status_code=499)  # nobody reads it
    log_fields(request.scope).update(model=served.name, sound_seconds=round(found.seconds, 2))
    service.metrics.count_transcript(served.name, time.perf_counter() - started)
    kind = body.response_format
    if kind in ("srt", "vtt"):
        return PlainTextResponse(write_transcript(found.text, found.passages, kind) + "\n")
    if kind == "text":
        return PlainTextResponse(found.text.strip() + "\n")
    return JSONResponse(_content(found, options, is_whole=kind == "verbose_json"))


def _times(body: TranscriptionBody) -> Times | None:
    """Returns what has times; raises RequestError [request-field] for what does not go together."""
    asked = body.granularities
    if asked is None:
        return None if body.response_format in ("json", "text") else "segment"
    if body.response_format != "verbose_json" or len(asked) != 1:
        raise RequestError(
            "timestamp_granularities[]: must be one, word or segment, and go with response_format "
            f"verbose_json; got {len(asked)} with {body.response_format}. Change one of them.",
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
