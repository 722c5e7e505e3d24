"""/v1/responses: answers in OpenAI's newer form, text only; nothing is stored."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npu_llm.serving.http.bodies import ResponsesBody, SamplingBody
from npu_llm.serving.http.endpoints.asking import ask, messages_of
from npu_llm.serving.http.event_stream import event
from npu_llm.serving.http.service import Asked, service_of
from npu_llm.serving.http.several import merged
from npu_llm.serving.models.served_model import ServedModel

__all__ = ["responses"]


async def responses(request: Request) -> Response:
    """Answers a text or a conversation, whole or as events."""
    service = service_of(request)
    body = await service.read(request, ResponsesBody)
    work = _Responding(body)
    return await service.answer(
        request, body.model, work.ask, whole=work.whole, events=work.events if body.stream else None
    )


class _Responding:
    """One request for a response."""

    def __init__(self, body: ResponsesBody) -> None:
        self._body = body
        self._message = f"msg_{uuid.uuid4().hex}"

    async def ask(self, served: ServedModel) -> Asked:
        """Starts the answer; raises what refuses it."""
        body = self._body
        if isinstance(body.input, str):
            messages = [{"role": "user", "content": body.input}]
        else:
            messages = messages_of(body.input)
        if body.instructions:
            messages.insert(0, {"role": "system", "content": body.instructions})
        prompt = await served.encode_chat(messages)
        answers = ask(
            served,
            prompt,
            SamplingBody.model_validate({"temperature": body.temperature, "top_p": body.top_p}),
            most_tokens=body.max_output_tokens,
            constraints=[],
            logprobs=None,
            tokenizer=served.tokenizer,
            count=1,
        )
        return Asked.of("resp", served, len(prompt), answers)

    async def whole(self, asked: Asked) -> dict[str, Any]:
        """Waits for the answer, and returns the response."""
        await asked.answers[0].whole()
        return self._response(asked)

    async def events(self, asked: Asked) -> AsyncGenerator[bytes, None]:
        """Yields the answer as it comes."""
        number = -1

        def told(kind: str, **content: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number, **content}, name=kind)

        place = {"item_id": self._message, "output_index": 0, "content_index": 0}
        empty = self._item("", "in_progress")
        yield told("response.created", response=self._response(asked))
        yield told("response.in_progress", response=self._response(asked))
        yield told("response.output_item.added", output_index=0, item={**empty, "content": []})
        yield told("response.content_part.added", **place, part=empty["content"][0])
        async for _, piece in merged(asked.answers):
            if piece.text:
                yield told("response.output_text.delta", **place, delta=piece.text, logprobs=[])
        text = asked.answers[0].text
        response = self._response(asked)
        item = response["output"][0]
        yield told("response.output_text.done", **place, text=text, logprobs=[])
        yield told("response.content_part.done", **place, part=item["content"][0])
        yield told("response.output_item.done", output_index=0, item=item)
        yield told(f"response.{response['status']}", response=response)

    def _response(self, asked: Asked) -> dict[str, Any]:
        """Returns the response as it is now."""
        body, answer = self._body, asked.answers[0]
        states = {None: "in_progress", "length": "incomplete"}
        cut = {"reason": "max_output_tokens"} if answer.finish == "length" else None
        state = states.get(answer.finish, "completed")
        usage = asked.usage()
        return {
            "id": asked.id,
            "object": "response",
            "created_at": asked.created,
            "status": state,
            "error": None,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": asked.served.name,
            "output": [] if answer.finish is None else [self._item(answer.text, state)],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None if answer.finish is None else {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }  # fmt: skip

    def _item(self, text: str, state: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {
            "id": self._message,
            "type": "message",
            "role": "assistant",
            "status": state,
            "content": [part],
        }
