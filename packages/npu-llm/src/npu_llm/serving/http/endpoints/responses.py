"""/v1/responses: answers in OpenAI's newer form; nothing is stored."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npu_llm.chat.tool_calls import Call
from npu_llm.serving.generation import Choice, Conversation, Delta, Generation, TextRequest
from npu_llm.serving.http.endpoints.fields import (
    call_of,
    content_of,
    schema_forms,
    thinking_options,
)
from npu_llm.serving.http.schemas.openai import (
    Reasoning,
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
    """Answers a text or a conversation, as one object or a stream of events."""
    service = service_of(request)
    body = await service.read(request, ResponsesBody)
    work = _Responding(body)
    return await service.answer(request, body, work.asked(), work)


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
                "`tool_choice` must name one of the tools, got another. Add it to tools.",
                code="request-field",
                parameter="tool_choice",
            )

    def asked(self) -> TextRequest:
        """Returns the request without its protocol."""
        body = self._body
        choice = body.tool_choice or "auto"
        reasoning = body.reasoning or Reasoning.model_validate({})
        tools = [] if choice == "none" else [
            {"type": "function", "function": tool.model_dump(exclude_none=True, exclude={"type"})}
            for tool in body.tools or ()
        ]  # fmt: skip
        conversation = Conversation(
            messages=self._messages(),
            tools=tools,
            tool_choice=choice if isinstance(choice, str) else choice.name,
            is_parallel=body.parallel_tool_calls,
            template_options=thinking_options(reasoning.effort),
            thinking_budget=reasoning.max_tokens,
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
            streams_calls=body.stream,
        )

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, Any]:
        """Returns the response."""
        (choice,) = choices
        state = _state(choice.finish)
        items = [_thought_item(choice.reasoning)] if choice.reasoning else []
        if choice.text or not choice.calls:
            items.append(_message(choice.text, state))
        items += [_call_item(call) for call in choice.calls]
        return self._response(generation, items, choice.finish)

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yields the events of the answer."""
        number = -1

        def emit(kind: str, **content: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number, **content}, name=kind)

        yield emit("response.created", response=self._response(generation, [], None))
        yield emit("response.in_progress", response=self._response(generation, [], None))
        items = _Items()
        finish = ""
        async for delta in generation.deltas():
            finish = delta.finish or finish
            for kind, content in items.add(delta):
                yield emit(kind, **content)
        response = self._response(generation, items.complete, finish)
        yield emit(f"response.{response['status']}", response=response)

    def _messages(self) -> list[dict[str, Any]]:
        """Returns the input as messages; calls belong to the previous message."""
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
        """Returns the response; without `finish` it is in progress."""
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
                "output_tokens_details": {"reasoning_tokens": usage.reasoning},
                "total_tokens": usage.prompt + usage.answer,
            },
        }  # fmt: skip


_Events = Iterator[tuple[str, dict[str, Any]]]


class _Items:
    """Converts deltas to events of items, of which one is open at a time.

    Attributes:
        complete: the items that have ended.
    """

    def __init__(self) -> None:
        self.complete: list[dict[str, Any]] = []
        self._kind = ""  # of the open item
        self._item: dict[str, Any] = {}
        self._text = ""

    def add(self, delta: Delta) -> _Events:
        """Yields the kinds and contents of the events that a delta adds."""
        if delta.reasoning:
            if self._kind != "reasoning":
                yield from self._open("reasoning", _thought_item(""))
            yield self._more("response.reasoning_text.delta", delta.reasoning, content_index=0)
        is_empty = delta.finish is not None and not self.complete and not delta.parts
        if delta.text or (is_empty and self._kind in ("", "reasoning")):
            if self._kind != "message":
                yield from self._open("message", _message("", "in_progress"))
            if delta.text:
                more = {"content_index": 0, "logprobs": list[Any]()}
                yield self._more("response.output_text.delta", delta.text, **more)
        for part in delta.parts:
            if part.kind == "call":
                yield from self._open("call", _call_item(Call(part.id, part.text, "")))
            else:
                yield self._more("response.function_call_arguments.delta", part.text)
        if delta.finish is not None:
            yield from self._close(_state(delta.finish))

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item["id"], "output_index": len(self.complete)}

    def _more(self, kind: str, text: str, **content: Any) -> tuple[str, dict[str, Any]]:
        self._text += text
        return kind, {**self._place, "delta": text, **content}

    def _open(self, kind: str, item: dict[str, Any]) -> _Events:
        yield from self._close("completed")
        self._kind, self._item, self._text = kind, item, ""
        begun = {**item, "status": "in_progress"}
        if kind != "call":
            begun["content"] = []
        index = len(self.complete)
        yield "response.output_item.added", {"output_index": index, "item": begun}
        if kind == "message":
            part = item["content"][0]
            content = {**self._place, "content_index": 0, "part": part}
            yield "response.content_part.added", content

    def _close(self, state: str) -> _Events:
        if not self._kind:
            return
        place, text = self._place, self._text
        item = self._item = {**self._item, "status": state}
        if self._kind == "call":
            item["arguments"] = text
            done = {**place, "name": item["name"], "arguments": text}
            yield "response.function_call_arguments.done", done
        else:
            (part,) = item["content"]
            item["content"] = [{**part, "text": text}]
            place["content_index"] = 0
            if self._kind == "message":
                yield "response.output_text.done", {**place, "text": text, "logprobs": []}
                yield "response.content_part.done", {**place, "part": item["content"][0]}
            else:
                yield "response.reasoning_text.done", {**place, "text": text}
        index = len(self.complete)
        yield "response.output_item.done", {"output_index": index, "item": item}
        self.complete.append(item)
        self._kind = ""


def _message(text: str, state: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "status": state,
        "content": [part],
    }


def _thought_item(text: str) -> dict[str, Any]:
    return {
        "id": f"rs_{uuid.uuid4().hex}",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "status": "completed",
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
