"""Anthropic's interface: /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from npu_llm.chat.tool_calls import Call
from npu_llm.serving.generation import (
    Choice,
    Conversation,
    Delta,
    Generation,
    TextRequest,
    Usage,
    encode_prompt,
)
from npu_llm.serving.http.endpoints.fields import (
    call_of,
    content_of,
    schema_forms,
    thinking_options,
)
from npu_llm.serving.http.schemas.anthropic import (
    AnthropicCall,
    AnthropicCountBody,
    AnthropicImage,
    AnthropicMessage,
    AnthropicOutput,
    AnthropicText,
    AnthropicThinking,
    MessagesBody,
)
from npu_llm.serving.http.service import service_of
from npu_llm.serving.http.streaming import event
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.request_error import RequestError
from npu_llm.structured_output import Form

__all__ = ["count_tokens", "messages"]


async def messages(request: Request) -> Response:
    """Answers a conversation, as one object or a stream of events."""
    service = service_of(request)
    body = await service.read(request, MessagesBody)
    sampling = {"temperature": body.temperature, "top_p": body.top_p or None}
    sampling["top_k"] = None if body.top_k is None else max(body.top_k, 0)
    asked = TextRequest(
        prompts=[_conversation(body)],
        sampling={name: value for name, value in sampling.items() if value is not None}
        | {"stop": tuple(stop for stop in body.stop_sequences or () if stop)},
        max_tokens=body.max_tokens,
        make_form=_form(body),
        streams_calls=body.stream,
    )
    return await service.answer(request, body, asked, _Messages())


def _form(body: MessagesBody) -> Callable[[], Form] | None:
    wanted = None if body.output_config is None else body.output_config.format
    if wanted is None:
        return None
    (make,) = schema_forms("json_schema", wanted.schema_, field="output_config.format")
    return make


async def count_tokens(request: Request) -> Response:
    """Returns the number of tokens of a conversation."""
    service = service_of(request)
    body = await service.read(request, AnthropicCountBody)
    async with service.registry.use(body.model, ServedModel) as served:
        tokens = await encode_prompt(served, _conversation(body))
    return JSONResponse({"input_tokens": len(tokens)})


def _conversation(body: AnthropicCountBody) -> Conversation:
    choice = body.tool_choice
    kind = "auto" if choice is None else choice.type
    tools: list[dict[str, Any]] = [] if kind == "none" else [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            },
        }
        for tool in body.tools or ()
    ]  # fmt: skip
    name = "" if choice is None else choice.name or ""
    if kind == "tool" and name not in [tool["function"]["name"] for tool in tools]:
        raise RequestError(
            "`tool_choice` must name one of the tools, got another. Add it to tools.",
            code="request-field",
            parameter="tool_choice",
        )
    found: list[dict[str, Any]] = []
    if body.system:
        found.append({"role": "system", "content": content_of(body.system)})
    for message in body.messages:
        found += _messages_of(message)
    # A last message of the assistant is continued.
    last = found[-1]
    is_begun = bool(last["content"]) and "tool_calls" not in last
    continues = body.messages[-1].role == "assistant" and is_begun
    effort = None if body.output_config is None else body.output_config.effort
    options = thinking_options(effort)
    if body.thinking is not None:
        options["enable_thinking"] = body.thinking.type != "disabled"
    choices = {"any": "required", "tool": name}
    return Conversation(
        messages=found,
        tools=tools,
        tool_choice=choices.get(kind, "auto"),
        is_parallel=choice is None or not choice.disable_parallel_tool_use,
        template_options=options,
        thinking_budget=None if body.thinking is None else body.thinking.budget_tokens,
        continues_last=continues,
    )


def _messages_of(message: AnthropicMessage) -> Iterator[dict[str, Any]]:
    """Yields a message in the form of chat templates, in which tool outputs are messages."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    for block in message.content:
        if isinstance(block, AnthropicOutput):
            content = content_of(block.content)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
    parts = [one for one in message.content if isinstance(one, (AnthropicText, AnthropicImage))]
    found: dict[str, Any] = {"role": message.role, "content": content_of(parts)}
    calls = [one for one in message.content if isinstance(one, AnthropicCall)]
    if calls:
        found["tool_calls"] = [call_of(one.id, one.name, one.input) for one in calls]
    thoughts = [one.thinking for one in message.content if isinstance(one, AnthropicThinking)]
    if thoughts:
        found["reasoning_content"] = "".join(thoughts)
    if parts or calls or thoughts:
        yield found


class _Messages:
    """One request for a message."""

    def __init__(self) -> None:
        self._id = f"msg_{uuid.uuid4().hex}"

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, Any]:
        """Returns the message."""
        (choice,) = choices
        content: list[dict[str, Any]] = []
        if choice.reasoning:
            content.append({"type": "thinking", "thinking": choice.reasoning, "signature": ""})
        if choice.text or not (choice.calls or choice.reasoning):
            content.append({"type": "text", "text": choice.text})
        content += [_call_block(call) for call in choice.calls]
        reason, stop = _reason(choice.finish, choice.stop, calls=bool(choice.calls))
        return {
            **self._head(generation),
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": _usage(generation.usage()),
        }

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yields the events of the message."""

        def emit(kind: str, **content: Any) -> bytes:
            return event({"type": kind, **content}, name=kind)

        begun = {**self._head(generation), "content": [], "stop_reason": None}
        usage = {**_usage(generation.usage()), "output_tokens": 0}
        begun |= {"stop_sequence": None, "usage": usage}
        yield emit("message_start", message=begun)
        blocks = _Blocks()
        async for delta in generation.deltas():
            for kind, content in blocks.add(delta):
                yield emit(kind, **content)
        finish, has_calls = blocks.finish, blocks.has_calls
        reason, stop = _reason(finish, generation.answers[0].stop, calls=has_calls)
        ended = {"stop_reason": reason, "stop_sequence": stop}
        yield emit("message_delta", delta=ended, usage=_usage(generation.usage()))
        yield emit("message_stop")

    def _head(self, generation: Generation) -> dict[str, Any]:
        model = generation.served.name
        return {"id": self._id, "type": "message", "role": "assistant", "model": model}


class _Blocks:
    """Converts deltas to events of blocks, of which one is open at a time.

    Attributes:
        finish: the finish reason; "" before the end.
        has_calls: whether a call has begun.
    """

    def __init__(self) -> None:
        self.finish = ""
        self.has_calls = False
        self._index = -1
        self._kind = ""  # of the open block

    def add(self, delta: Delta) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the kinds and contents of the events that a delta adds."""
        if delta.reasoning:
            yield from self._open("thinking", {"thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.text:
            yield from self._open("text", {"text": ""})
            yield self._delta({"type": "text_delta", "text": delta.text})
        for part in delta.parts:
            if part.kind == "call":
                self.has_calls = True
                begun = {"id": part.id, "name": part.text, "input": {}}
                yield from self._open("tool_use", begun, is_new=True)
            else:
                yield self._delta({"type": "input_json_delta", "partial_json": part.text})
        if delta.finish is not None:
            self.finish = delta.finish
            yield from self._close()

    def _open(
        self, kind: str, content: dict[str, Any], *, is_new: bool = False
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        if self._kind == kind and not is_new:
            return
        yield from self._close()
        self._index, self._kind = self._index + 1, kind
        block = {"type": kind, **content}
        yield "content_block_start", {"index": self._index, "content_block": block}

    def _close(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if self._kind:
            self._kind = ""
            yield "content_block_stop", {"index": self._index}

    def _delta(self, content: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "content_block_delta", {"index": self._index, "delta": content}


def _call_block(call: Call) -> dict[str, Any]:
    given = json.loads(call.arguments)
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.answer,
    }


def _reason(finish: str, stop: str | int | None, *, calls: bool) -> tuple[str, str | None]:
    """Returns `stop_reason` and `stop_sequence`."""
    if finish == "length":
        return "max_tokens", None
    if calls:
        return "tool_use", None
    return ("stop_sequence", stop) if isinstance(stop, str) else ("end_turn", None)
