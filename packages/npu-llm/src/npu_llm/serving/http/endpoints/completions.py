"""/v1/completions: continuations of texts or tokens."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npu_llm.engine.sampler import Token
from npu_llm.serving.generation import Choice, Gap, Generation, Prompt, Text, TextRequest
from npu_llm.serving.http.endpoints.chat import ChunkWriter, usage_of
from npu_llm.serving.http.endpoints.fields import form_of, inputs_of, request_of
from npu_llm.serving.http.endpoints.logprobs import completion_logprobs
from npu_llm.serving.http.schemas.openai import CompletionBody
from npu_llm.serving.http.service import service_of
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.request_error import RequestError

__all__ = ["completions"]

_MAX_PROMPTS = 1024
_DEFAULT_TOKENS = 16  # OpenAI's


async def completions(request: Request) -> Response:
    """Continues one or more texts, as one object or a stream of events."""
    service = service_of(request)
    body = await service.read(request, CompletionBody)
    work = _Completion(body)
    return await service.answer(request, body, work.asked(), work)


class _Completion:
    """One request for continuations."""

    def __init__(self, body: CompletionBody) -> None:
        self._body = body
        self._given = inputs_of("prompt", body.prompt, most=_MAX_PROMPTS)
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        _check(body)

    def asked(self) -> TextRequest:
        """Returns the request without its protocol."""
        body = self._body
        special = body.add_special_tokens
        prompts: list[Prompt] = [
            Text(one, special) if isinstance(one, str) else one for one in self._given
        ]
        if body.suffix:
            prompts = [Gap(one, body.suffix) for one in self._given]
        return request_of(
            body,
            prompts,
            candidates=body.best_of,
            max_tokens=_DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens,
            make_form=form_of(body),
            logprobs=body.logprobs,
            scores_prompt=body.echo and body.logprobs is not None,
        )

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, Any]:
        """Returns the response."""
        found = []
        for index, choice in enumerate(choices):
            echo = self._echo(generation, index)
            tokens = [*choice.tokens, *_ends(choice.end)]
            logprobs = self._logprobs(generation.served, tokens, len(echo))
            if self._body.echo and logprobs is not None:
                tokens = [] if self._body.max_tokens == 0 else tokens
                tokens = [*choice.prompt_tokens, *tokens]
                logprobs = self._prompt_logprobs(generation.served, choice.prompt[0], tokens)
            found.append(
                {
                    "index": index,
                    "text": echo + choice.text,
                    "logprobs": logprobs,
                    "finish_reason": choice.finish,
                    "stop_reason": choice.stop if choice.finish == "stop" else None,
                }
            )
        head = self._head(generation.served.name)
        return {**head, "choices": found, "usage": usage_of(generation.usage())}

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yields the chunks of the answers."""
        head = self._head(generation.served.name)
        writer = ChunkWriter(head, self._body.stream_options, generation)

        def chunk(index: int, text: str, **more: Any) -> bytes:
            return writer.chunk(index, {"text": text}, **more)

        echoes = [self._echo(generation, index) for index in range(len(generation.answers))]
        for index, echo in enumerate(echoes):
            if echo:
                yield chunk(index, echo)
        offsets = [len(echo) for echo in echoes]
        async for delta in generation.deltas():
            index = delta.index
            end = None if delta.finish is None else generation.answers[index].end
            tokens = [*delta.tokens, *_ends(end)]
            if delta.text or (tokens and self._body.logprobs is not None):
                logprobs = self._logprobs(generation.served, tokens, offsets[index])
                offsets[index] += len(delta.text)
                yield chunk(index, delta.text, logprobs=logprobs)
            if delta.finish is not None:
                yield chunk(index, "", finish_reason=delta.finish)
        for last in writer.end():
            yield last

    def _head(self, model: str) -> dict[str, Any]:
        return {
            "id": self._id, "object": "text_completion", "created": self._created, "model": model,
        }  # fmt: skip

    def _echo(self, generation: Generation, index: int) -> str:
        if not self._body.echo:
            return ""
        place = index // (len(generation.answers) // len(generation.prompts))
        if self._body.best_of is not None:
            place = index // self._body.n
        given = self._given[place]
        return given if isinstance(given, str) else generation.served.tokenizer.decode(given)

    def _prompt_logprobs(
        self, served: ServedModel, first: int, tokens: Sequence[Token]
    ) -> dict[str, Any]:
        """Returns the log probabilities of an echoed prompt and of its answer."""
        top = self._body.logprobs or 0
        return completion_logprobs(served, tokens, top=top, offset=0, first=first)

    def _logprobs(
        self, served: ServedModel, tokens: Sequence[Token], offset: int
    ) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        return completion_logprobs(served, tokens, top=self._body.logprobs, offset=offset)


def _ends(token: Token | None) -> list[Token]:
    """Returns the token that ended an answer. It is counted, as lm-eval expects."""
    return [] if token is None else [token]


def _check(body: CompletionBody) -> None:
    """Raises RequestError [request-field] for incompatible fields."""
    wrong: tuple[str, str] | None = None
    if body.echo and body.logprobs is not None and body.stream:
        wrong = ("echo", "must come without stream or logprobs, got all three. Omit one.")
    elif body.max_tokens == 0 and not body.echo:
        wrong = ("max_tokens", "must be at least 1 without echo, got 0. Raise it.")
    elif body.best_of is not None and body.best_of < body.n:
        wrong = ("best_of", "must be at least n, got less. Raise it.")
    elif body.best_of is not None and body.best_of > body.n and body.stream:
        wrong = ("best_of", "must be n in a stream, got more. Omit it.")
    elif body.suffix and not isinstance(body.prompt[0], str):
        wrong = ("suffix", "must come with texts, got tokens. Omit it.")
    elif body.stream_options is not None and not body.stream:
        wrong = ("stream_options", "must come with stream true, got it alone. Set that too.")
    if wrong is not None:
        name, text = wrong
        raise RequestError(f"{name}: {text}", code="request-field", parameter=name)
