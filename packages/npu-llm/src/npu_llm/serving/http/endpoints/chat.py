"""/v1/chat/completions and /v1/responses: answers to conversations."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npu_llm.chat.tool_calls import (
    Call,
    CallReader,
    CallStyle,
    call_schema,
    read_calls,
    style_of,
)
from npu_llm.engine.sampler import Token
from npu_llm.serving.http.endpoints.sampling import chat_logprobs, form_of, messages_of, submit
from npu_llm.serving.http.errors import RequestError
from npu_llm.serving.http.schemas import ChatBody, ChosenTool, ResponsesBody, SamplingBody
from npu_llm.serving.http.service import PendingAnswers, service_of
from npu_llm.serving.http.streaming import event, gather_pieces
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.structured_output import Form

__all__ = ["chat_completions", "responses"]

# Options of chat templates that transformers takes for its own.
_RESERVED = {
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents",
    "max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict",
    "return_tensors", "tokenize", "tokenizer_kwargs", "tools", "truncation",
}  # fmt: skip


async def chat_completions(request: Request) -> Response:
    """Answers a conversation, whole or as events."""
    service = service_of(request)
    body = await service.read(request, ChatBody)
    chat = _Chat(body)
    return await service.answer(
        request, body.model, chat.ask, whole=chat.whole, events=chat.events if body.stream else None
    )


class _Chat:
    """One request for answers to a conversation."""

    def __init__(self, body: ChatBody) -> None:
        self._body = body
        self._style: CallStyle | None = None  # set where the answer may call tools
        self._must_call = False
        _check(body)

    async def ask(self, served: ServedModel) -> PendingAnswers:
        """Starts the answers; raises what refuses them."""
        body = self._body
        tools = body.tools if body.tool_choice != "none" else None
        make = form_of(body, body.response_format)
        if tools:
            make = self._expect_calls(served, make)
        described = [tool.model_dump(exclude_none=True) for tool in tools] if tools else None
        prompt = await served.encode_chat(
            messages_of(body.messages),
            tools=described,
            template_options=body.chat_template_kwargs,
        )
        constraints = []
        if make is not None:
            constraints = [await served.constraint(make) for _ in range(body.n)]
        answers = submit(
            served,
            prompt,
            body,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            constraints=constraints,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            tokenizer=_WithMarks(served.tokenizer) if self._style else served.tokenizer,
            count=body.n,
        )
        return PendingAnswers.of("chatcmpl", served, len(prompt), answers)

    async def whole(self, pending: PendingAnswers) -> dict[str, Any]:
        """Waits for the answers, and returns the response."""
        tokens: list[list[Token]] = [[] for _ in pending.answers]
        async for index, piece in gather_pieces(pending.answers):
            tokens[index] += piece.tokens
        choices = []
        for index, answer in enumerate(pending.answers):
            calls = self._calls(answer.text)
            message: dict[str, Any] = {"role": "assistant", "content": answer.text}
            if calls:
                message |= {"content": None, "tool_calls": [call.content() for call in calls]}
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs(pending.served, tokens[index]),
                    "finish_reason": _reason(answer.finish, calls),
                }
            )
        return {
            **pending.head("chat.completion"),
            "choices": choices,
            "usage": pending.usage(),
        }

    async def events(self, pending: PendingAnswers) -> AsyncGenerator[bytes, None]:
        """Yields the answers as they come."""
        options = self._body.stream_options
        tells_usage = options is not None and options.include_usage
        head = pending.head("chat.completion.chunk")
        if tells_usage:
            head["usage"] = None

        def chunk(index: int, delta: dict[str, Any], **more: Any) -> bytes:
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            return event({**head, "choices": [{**choice, **more}]})

        for index in range(len(pending.answers)):
            yield chunk(index, {"role": "assistant", "content": ""})
        readers = [self._reader() for _ in pending.answers]
        held: list[list[Token]] = [[] for _ in pending.answers]
        async for index, piece in gather_pieces(pending.answers):
            reader, answer = readers[index], pending.answers[index]
            held[index] += piece.tokens
            text = piece.text if reader is None else reader.take(piece.text)
            calls: list[Call] = []
            if answer.finish is not None and reader is not None:
                rest, calls = reader.end()
                text += rest
            if text:
                logprobs = self._logprobs(pending.served, held[index])
                held[index] = []
                yield chunk(index, {"content": text}, logprobs=logprobs)
            if calls:
                parts = [{"index": i, **call.content()} for i, call in enumerate(calls)]
                yield chunk(index, {"tool_calls": parts})
            if answer.finish is not None:
                yield chunk(index, {}, finish_reason=_reason(answer.finish, calls))
        if tells_usage:
            yield event({**head, "choices": [], "usage": pending.usage()})
        yield event("[DONE]")

    def _logprobs(self, served: ServedModel, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(served, tokens, top=self._body.top_logprobs or 0)

    # Tools

    def _expect_calls(self, served: ServedModel, make: Any) -> Any:
        """Notes how calls are read; returns what makes the form of an answer that must be one."""
        body = self._body
        self._style = style_of(getattr(served.tokenizer, "chat_template", None))
        if self._style is None:
            raise RequestError(
                "tools: must be asked of a model whose chat template describes them; got "
                f"{served.name}. Omit them.",
                code="request-unsupported",
                parameter="tools",
            )
        if body.tool_choice in (None, "auto"):
            return make
        if make is not None:
            raise RequestError(
                "response_format: must not be there where a tool must be called; got both. Omit "
                "one.",
                code="request-field",
                parameter="response_format",
            )
        name = body.tool_choice.function.name if isinstance(body.tool_choice, ChosenTool) else None
        self._must_call = True
        functions = [tool.function.model_dump(exclude_none=True) for tool in body.tools or ()]
        schema = call_schema(functions, self._style, name=name)
        return lambda: Form.of_schema(schema)

    def _reader(self) -> CallReader | None:
        if self._style is None:
            return None
        style: CallStyle = "bare" if self._must_call else self._style
        return CallReader(style, self._names)

    def _calls(self, text: str) -> list[Call]:
        reader = self._reader()
        if reader is None:
            return []
        if self._must_call:
            return read_calls(text, "bare", self._names)
        reader.take(text)
        return reader.end()[1]

    @property
    def _names(self) -> list[str]:
        return [tool.function.name for tool in self._body.tools or ()]


class _WithMarks:
    """Decodes tokens with the special ones, which begin calls in some models' answers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def decode(self, tokens: Any, **_: Any) -> str:
        """Returns the text of tokens."""
        text: str = self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return text


def _reason(finish: str | None, calls: Sequence[Call]) -> str | None:
    return "tool_calls" if calls and finish == "stop" else finish


def _check(body: ChatBody) -> None:
    """Raises RequestError [request-field] for fields that do not go together."""
    wrong: tuple[str, str] | None = None
    chosen = body.tool_choice
    names = [tool.function.name for tool in body.tools or ()]
    if body.top_logprobs is not None and not body.logprobs:
        wrong = ("top_logprobs", "must come with logprobs true; got it alone. Set that too.")
    elif body.stream_options is not None and not body.stream:
        wrong = ("stream_options", "must come with stream true; got it alone. Set that too.")
    elif isinstance(chosen, ChosenTool) and chosen.function.name not in names:
        wrong = ("tool_choice", "must name one of the tools; got another. Add it to tools.")
    elif chosen == "required" and not names:
        wrong = ("tool_choice", "must come with tools; got none. Add them.")
    elif len(set(names)) < len(names):
        wrong = ("tools", "must have different names; got one twice. Rename one.")
    elif reserved := sorted(_RESERVED & set(body.chat_template_kwargs or ())):
        wrong = ("chat_template_kwargs", f"must be the template's; got {reserved[0]}. Omit it.")
    if wrong is not None:
        name, text = wrong
        raise RequestError(f"{name}: {text}", code="request-field", parameter=name)


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

    async def ask(self, served: ServedModel) -> PendingAnswers:
        """Starts the answer; raises what refuses it."""
        body = self._body
        if isinstance(body.input, str):
            messages = [{"role": "user", "content": body.input}]
        else:
            messages = messages_of(body.input)
        if body.instructions:
            messages.insert(0, {"role": "system", "content": body.instructions})
        prompt = await served.encode_chat(messages)
        answers = submit(
            served,
            prompt,
            SamplingBody.model_validate({"temperature": body.temperature, "top_p": body.top_p}),
            max_tokens=body.max_output_tokens,
            constraints=[],
            logprobs=None,
            tokenizer=served.tokenizer,
            count=1,
        )
        return PendingAnswers.of("resp", served, len(prompt), answers)

    async def whole(self, pending: PendingAnswers) -> dict[str, Any]:
        """Waits for the answer, and returns the response."""
        await pending.answers[0].whole()
        return self._response(pending)

    async def events(self, pending: PendingAnswers) -> AsyncGenerator[bytes, None]:
        """Yields the answer as it comes."""
        number = -1

        def emit(kind: str, **content: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number, **content}, name=kind)

        place = {"item_id": self._message, "output_index": 0, "content_index": 0}
        empty = self._item("", "in_progress")
        yield emit("response.created", response=self._response(pending))
        yield emit("response.in_progress", response=self._response(pending))
        yield emit("response.output_item.added", output_index=0, item={**empty, "content": []})
        yield emit("response.content_part.added", **place, part=empty["content"][0])
        async for _, piece in gather_pieces(pending.answers):
            if piece.text:
                yield emit("response.output_text.delta", **place, delta=piece.text, logprobs=[])
        text = pending.answers[0].text
        response = self._response(pending)
        item = response["output"][0]
        yield emit("response.output_text.done", **place, text=text, logprobs=[])
        yield emit("response.content_part.done", **place, part=item["content"][0])
        yield emit("response.output_item.done", output_index=0, item=item)
        yield emit(f"response.{response['status']}", response=response)

    def _response(self, pending: PendingAnswers) -> dict[str, Any]:
        """Returns the response as it is now."""
        body, answer = self._body, pending.answers[0]
        states = {None: "in_progress", "length": "incomplete"}
        cut = {"reason": "max_output_tokens"} if answer.finish == "length" else None
        state = states.get(answer.finish, "completed")
        usage = pending.usage()
        return {
            "id": pending.id,
            "object": "response",
            "created_at": pending.created,
            "status": state,
            "error": None,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": pending.served.name,
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
