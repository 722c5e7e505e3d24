"""/v1/responses: answers in OpenAI's newer form; nothing is stored."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npu_llm.chat.tool_calls import Call
from npu_llm.serving.generation import Choice, Conversation, Generation, TextRequest
from npu_llm.serving.http.endpoints.fields import call_of, content_of, schema_forms
from npu_llm.serving.http.schemas.openai import (
    ResponsesBody,
    ResponsesCall,
    ResponsesMessage,
    ResponsesOutput,
)
from npu_llm.serving.http.service import service_of
from npu_llm.serving.http.streaming import event
from npu_llm.serving.request_error import RequestError

__all__ = ["responses"]


async def responses(request: Request) -> Response:
    """Answers a text or a conversation, whole or as events."""
    service = service_of(request)
    body = await service.read(request, ResponsesBody)
    work = _Responding(body)
    return await service.answer(
        request,
        body.model,
        work.asked(),
        whole=work.whole,
        events=work.events if body.stream else None,
    )


class _Responding:
    """One request for a response."""

    def __init__(self, body: ResponsesBody) -> None:
        self._body = body
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        names = [tool.name for tool in body.tools or ()]
        chosen = body.tool_choice
        if not isinstance(chosen, str) and chosen is not None and chosen.name not in names:
            raise RequestError(
                "tool_choice: must name one of the tools; got another. Add it to tools.",
                code="request-field",
                parameter="tool_choice",
            )

    def asked(self) -> TextRequest:
        """Returns the request without its protocol."""
        body = self._body
        choice = body.tool_choice or "auto"
        tools = [] if choice == "none" else [
            {"type": "function", "function": tool.model_dump(exclude_none=True, exclude={"type"})}
            for tool in body.tools or ()
        ]  # fmt: skip
        conversation = Conversation(
            messages=self._messages(),
            tools=tools,
            tool_choice=choice if isinstance(choice, str) else choice.name,
        )
        format_ = None if body.text is None else body.text.format
        forms = []
        if format_ is not None:
            forms = schema_forms(format_.type, format_.schema_, field="text.format")
        sampling = {"temperature": body.temperature, "top_p": body.top_p}
        return TextRequest(
            prompts=[conversation],
            sampling={name: value for name, value in sampling.items() if value is not None},
            max_tokens=body.max_output_tokens,
            make_form=forms[0] if forms else None,
        )

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, Any]:
        """Returns the response."""
        (choice,) = choices
        state = _state(choice.finish)
        items = [self._message(choice.text, state)] if choice.text or not choice.calls else []
        items += [_call_item(call) for call in choice.calls]
        return self._response(generation, items, choice.finish)

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yields the answer as it comes."""
        number = -1

        def emit(kind: str, **content: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number, **content}, name=kind)

        yield emit("response.created", response=self._response(generation, [], None))
        yield emit("response.in_progress", response=self._response(generation, [], None))
        message = self._message("", "in_progress")
        place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
        text, items, finish, is_open = "", list[dict[str, Any]](), "", False
        async for delta in generation.deltas():
            finish = delta.finish or finish
            is_empty = finish and not delta.calls and not items
            if not is_open and not items and (delta.text or is_empty):
                is_open = True
                item = {**message, "content": []}
                yield emit("response.output_item.added", output_index=0, item=item)
                part = message["content"][0]
                yield emit("response.content_part.added", **place, part=part)
            if delta.text:
                text += delta.text
                yield emit("response.output_text.delta", **place, delta=delta.text, logprobs=[])
            if is_open and (delta.calls or finish):
                is_open = False
                items.append({**self._message(text, _state(finish or "stop")), "id": message["id"]})
                part = items[0]["content"][0]
                yield emit("response.output_text.done", **place, text=text, logprobs=[])
                yield emit("response.content_part.done", **place, part=part)
                yield emit("response.output_item.done", output_index=0, item=items[0])
            for call in delta.calls:
                items.append(_call_item(call))
                for kind, content in _call_events(items[-1], len(items) - 1):
                    yield emit(kind, **content)
        response = self._response(generation, items, finish)
        yield emit(f"response.{response['status']}", response=response)

    def _messages(self) -> list[dict[str, Any]]:
        """Returns the input as messages; calls belong to the message before them."""
        body = self._body
        found: list[dict[str, Any]] = []
        if body.instructions:
            found.append({"role": "system", "content": body.instructions})
        if isinstance(body.input, str):
            return [*found, {"role": "user", "content": body.input}]
        for item in body.input:
            if isinstance(item, ResponsesMessage):
                role = "system" if item.role == "developer" else item.role
                found.append({"role": role, "content": content_of(item.content)})
            elif isinstance(item, ResponsesCall):
                if not found or found[-1]["role"] != "assistant":
                    found.append({"role": "assistant", "content": ""})
                calls = found[-1].setdefault("tool_calls", [])
                calls.append(call_of(item.call_id, item.name, item.arguments))
            elif isinstance(item, ResponsesOutput):
                output = content_of(item.output)
                found.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
        return found

    def _response(
        self, generation: Generation, items: list[dict[str, Any]], finish: str | None
    ) -> dict[str, Any]:
        """Returns the response as it is now; without `finish` it is in progress."""
        body, usage = self._body, generation.usage()
        cut = {"reason": "max_output_tokens"} if finish == "length" else None
        text = None if body.text is None else body.text.model_dump(exclude_none=True, by_alias=True)
        tools = [tool.model_dump() for tool in body.tools or ()]
        choice = body.tool_choice or "auto"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": _state(finish),
            "error": None,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": generation.served.name,
            "output": items,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": text or {"format": {"type": "text"}},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": tools,
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None if finish is None else {
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.answer,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt + usage.answer,
            },
        }  # fmt: skip

    def _message(self, text: str, state: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "status": state,
            "content": [part],
        }


def _state(finish: str | None) -> str:
    return {None: "in_progress", "length": "incomplete"}.get(finish, "completed")


def _call_item(call: Call) -> dict[str, Any]:
    return {
        "id": f"fc_{uuid.uuid4().hex}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def _call_events(item: dict[str, Any], index: int) -> Iterator[tuple[str, dict[str, Any]]]:
    place = {"item_id": item["id"], "output_index": index}
    begun = {**item, "arguments": "", "status": "in_progress"}
    whole = item["arguments"]
    yield "response.output_item.added", {"output_index": index, "item": begun}
    yield "response.function_call_arguments.delta", {**place, "delta": whole}
    done = {**place, "name": item["name"], "arguments": whole}
    yield "response.function_call_arguments.done", done
    yield "response.output_item.done", {"output_index": index, "item": item}
