"""/v1/chat/completions: answers to conversations, in OpenAI's form."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npu_llm.chat.output_parser import Delta as Part
from npu_llm.engine.sampler import Token
from npu_llm.serving.generation import Choice, Conversation, Generation, TextRequest, Usage
from npu_llm.serving.http.endpoints.fields import (
    form_of,
    messages_of,
    request_of,
    thinking_options,
)
from npu_llm.serving.http.endpoints.logprobs import chat_logprobs
from npu_llm.serving.http.endpoints.speech_chat import transcribe_chat
from npu_llm.serving.http.schemas.openai import ChatBody, ChosenTool, StreamOptions
from npu_llm.serving.http.service import service_of
from npu_llm.serving.http.streaming import event
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.task_models import ServedSpeech
from npu_llm.serving.request_error import RequestError

__all__ = ["ChunkWriter", "chat_completions", "usage_of"]

# Options of chat templates that transformers uses itself.
_RESERVED = {
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents",
    "max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict",
    "return_tensors", "tokenize", "tokenizer_kwargs", "tools", "truncation",
}  # fmt: skip


async def chat_completions(request: Request) -> Response:
    """Answers a conversation, as one object or a stream of events."""
    service = service_of(request)
    body = await service.read(request, ChatBody)
    if body.model is not None and service.registry.has(body.model, ServedSpeech):
        return await transcribe_chat(request, body)
    chat = _Chat(body)
    return await service.answer(request, body, chat.asked(), chat)


def usage_of(usage: Usage) -> dict[str, Any]:
    """Returns the token counts in OpenAI's form."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.answer,
        "total_tokens": usage.prompt + usage.answer,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


class ChunkWriter:
    """Writes a stream of OpenAI's chunks, with usage if requested."""

    def __init__(
        self, head: Mapping[str, Any], options: StreamOptions | None, generation: Generation
    ) -> None:
        self._head = head
        self._options = options
        self._generation = generation

    def chunk(self, index: int, part: Mapping[str, Any], **more: Any) -> bytes:
        """Returns the event of a part of an answer.

        Args:
            index: index of the answer.
            part: its text or delta.
            more: fields of the choice that are not null.
        """
        choice = {"index": index, **part, "logprobs": None, "finish_reason": None, **more}
        usage: dict[str, Any] = {}
        if self._options is not None and self._options.include_usage:
            is_due = self._options.continuous_usage_stats
            usage = {"usage": usage_of(self._generation.usage()) if is_due else None}
        return event({**self._head, "choices": [choice], **usage})

    def end(self) -> Iterator[bytes]:
        """Yields the events after the last answer."""
        if self._options is not None and self._options.include_usage:
            usage = usage_of(self._generation.usage())
            yield event({**self._head, "choices": [], "usage": usage})
        yield event("[DONE]")


class _Chat:
    """One request for answers to a conversation."""

    def __init__(self, body: ChatBody) -> None:
        self._body = body
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        _check(body)

    def asked(self) -> TextRequest:
        """Returns the request without its protocol."""
        body = self._body
        tools = body.tools if body.tools and body.tool_choice != "none" else ()
        choice = body.tool_choice or "auto"
        conversation = Conversation(
            messages=messages_of(body.messages),
            tools=[tool.model_dump(exclude_none=True) for tool in tools],
            tool_choice=choice.function.name if isinstance(choice, ChosenTool) else choice,
            is_parallel=body.parallel_tool_calls,
            template_options=thinking_options(body.effort) | (body.chat_template_kwargs or {}),
            thinking_budget=body.budget,
            continues_last=body.continue_final_message,
        )
        return request_of(
            body,
            [conversation],
            max_tokens=body.max_completion_tokens or body.max_tokens,
            make_form=form_of(body, body.response_format),
            streams_calls=body.stream,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, Any]:
        """Returns the response."""
        found = []
        for index, choice in enumerate(choices):
            message: dict[str, Any] = {"role": "assistant", "content": choice.text}
            if choice.reasoning:
                message["reasoning_content"] = choice.reasoning
            if choice.calls:
                message["content"] = choice.text or None
                message["tool_calls"] = [call.content() for call in choice.calls]
            found.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs(generation.served, choice.tokens),
                    "finish_reason": _reason(choice.finish, calls=bool(choice.calls)),
                }
            )
        head = self._head("chat.completion", generation.served.name)
        return {**head, "choices": found, "usage": usage_of(generation.usage())}

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yields the chunks of the answers."""
        head = self._head("chat.completion.chunk", generation.served.name)
        writer = ChunkWriter(head, self._body.stream_options, generation)

        def chunk(index: int, delta: dict[str, Any], **more: Any) -> bytes:
            return writer.chunk(index, {"delta": delta}, **more)

        for index in range(len(generation.answers)):
            yield chunk(index, {"role": "assistant", "content": ""})
        calls = [0] * len(generation.answers)
        async for delta in generation.deltas():
            index = delta.index
            if delta.reasoning:
                yield chunk(index, {"reasoning_content": delta.reasoning})
            if delta.text or (delta.tokens and self._body.logprobs):
                logprobs = self._logprobs(generation.served, delta.tokens)
                yield chunk(index, {"content": delta.text}, logprobs=logprobs)
            if delta.parts:
                calls[index] += sum(part.kind == "call" for part in delta.parts)
                yield chunk(index, {"tool_calls": [_call_part(part) for part in delta.parts]})
            if delta.finish is not None:
                reason = _reason(delta.finish, calls=calls[index] > 0)
                yield chunk(index, {}, finish_reason=reason)
        for last in writer.end():
            yield last

    def _head(self, kind: str, model: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": model}

    def _logprobs(self, served: ServedModel, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(served, tokens, top=self._body.top_logprobs or 0)


def _call_part(part: Part) -> dict[str, Any]:
    if part.kind == "arguments":
        return {"index": part.index, "function": {"arguments": part.text}}
    function = {"name": part.text, "arguments": ""}
    return {"index": part.index, "id": part.id, "type": "function", "function": function}


def _reason(finish: str, *, calls: bool) -> str:
    return "tool_calls" if calls and finish == "stop" else finish


def _check(body: ChatBody) -> None:
    """Raises RequestError [request-field] for incompatible fields."""
    wrong: tuple[str, str] | None = None
    chosen = body.tool_choice
    names = [tool.function.name for tool in body.tools or ()]
    ends_open = body.continue_final_message
    if body.top_logprobs is not None and not body.logprobs:
        wrong = ("top_logprobs", "must come with logprobs true, got it alone. Set that too.")
    elif body.stream_options is not None and not body.stream:
        wrong = ("stream_options", "must come with stream true, got it alone. Set that too.")
    elif isinstance(chosen, ChosenTool) and chosen.function.name not in names:
        wrong = ("tool_choice", "must name one of the tools, got another. Add it to tools.")
    elif chosen == "required" and not names:
        wrong = ("tool_choice", "must come with tools, got none. Add them.")
    elif len(set(names)) < len(names):
        wrong = ("tools", "must have different names, got one twice. Rename one.")
    elif reserved := sorted(_RESERVED & set(body.chat_template_kwargs or ())):
        wrong = ("chat_template_kwargs", f"must be the template's, got {reserved[0]}. Omit it.")
    elif ends_open and "add_generation_prompt" in body.model_fields_set:
        if body.add_generation_prompt:
            wrong = (
                "continue_final_message",
                "must come with add_generation_prompt false, got true. Set that to false.",
            )
    elif not ends_open and not body.add_generation_prompt:
        wrong = (
            "add_generation_prompt",
            "must come with continue_final_message if false, got it alone. Set that too.",
        )
    if wrong is not None:
        name, text = wrong
        raise RequestError(f"{name}: {text}", code="request-field", parameter=name)
