"""Chats with speech models: the answer to a message with audio is its transcript."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from npu_llm.serving.http.endpoints.fields import messages_of
from npu_llm.serving.http.middleware import log_fields
from npu_llm.serving.http.schemas.openai import ChatBody
from npu_llm.serving.http.service import service_of
from npu_llm.serving.http.streaming import ClientLeftError, EventStream, event, until_disconnect
from npu_llm.serving.media import with_media
from npu_llm.serving.models.task_models import ServedSpeech
from npu_llm.serving.request_error import RequestError
from npu_llm.speech.transcript import TranscriptOptions

__all__ = ["transcribe_chat"]


async def transcribe_chat(request: Request, body: ChatBody) -> Response:
    """Transcribes the audio of the last message, as one object or a stream of events."""
    service = service_of(request)
    content = messages_of(body.messages)[-1]["content"]
    parts = [] if isinstance(content, str) else content
    sounds = [part for part in parts if part["type"] == "audio"]
    if len(sounds) != 1:
        raise RequestError(
            "`messages` must end with one audio input, input_audio, for a speech model, got "
            f"{len(sounds)}. Send one.",
            code="request-field",
            parameter="messages",
        )
    (message,) = await with_media(
        [{"role": "user", "content": sounds}], may_fetch=service.settings.fetches_media
    )
    options = TranscriptOptions(temperature=min(body.temperature or 0.0, 1.0))
    started = time.perf_counter()
    async with service.registry.use(body.model, ServedSpeech) as served:
        work = served.transcribe(message["content"][0]["data"], options)
        try:
            found = await until_disconnect(request, work)
        except ClientLeftError:
            return Response(status_code=499)  # the client has disconnected
    log_fields(request.scope).update(model=served.name, sound_seconds=round(found.seconds, 2))
    service.metrics.count_transcript(served.name, time.perf_counter() - started)
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": served.name}
    answer = {"role": "assistant", "content": found.text.strip()}
    if body.stream:
        return EventStream(_events(head, answer), _nothing)
    choice = {"index": 0, "message": answer, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    content = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    return JSONResponse(content)


async def _events(head: dict[str, Any], answer: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    chunk = {**head, "object": "chat.completion.chunk"}
    choice = {"index": 0, "logprobs": None}
    yield event({**chunk, "choices": [{**choice, "delta": answer, "finish_reason": None}]})
    yield event({**chunk, "choices": [{**choice, "delta": {}, "finish_reason": "stop"}]})
    yield event("[DONE]")


async def _nothing() -> None:
    """No-op: the transcript is complete."""
