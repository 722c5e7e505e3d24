"""/v1/completions: what follows a text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npu_llm.engine.sampler import Token
from npu_llm.serving.answer import Answer
from npu_llm.serving.http.endpoints.sampling import completion_logprobs, form_of, inputs_of, submit
from npu_llm.serving.http.errors import RequestError
from npu_llm.serving.http.schemas import CompletionBody
from npu_llm.serving.http.service import PendingAnswers, service_of
from npu_llm.serving.http.streaming import event, gather_pieces
from npu_llm.serving.models.served_model import ServedModel

__all__ = ["completions"]

_MAX_PROMPTS = 64
_DEFAULT_TOKENS = 16  # OpenAI's


async def completions(request: Request) -> Response:
    """Continues one text or several, whole or as events."""
    service = service_of(request)
    body = await service.read(request, CompletionBody)
    work = _Completion(body)
    return await service.answer(
        request, body.model, work.ask, whole=work.whole, events=work.events if body.stream else None
    )


class _Completion:
    """One request for what follows."""

    def __init__(self, body: CompletionBody) -> None:
        self._body = body
        self._prompts = _prompts(body)
        self._echoes: list[str] = []  # by choice

    async def ask(self, served: ServedModel) -> PendingAnswers:
        """Starts the answers; raises what refuses them."""
        body = self._body
        make = form_of(body)
        answers: list[Answer] = []
        total = 0
        try:
            for given in self._prompts:
                tokens = await _tokens(served, given)
                total += len(tokens)
                constraints = []
                if make is not None:
                    constraints = [await served.constraint(make) for _ in range(body.n)]
                answers += submit(
                    served, tokens, body,
                    max_tokens=body.max_tokens or _DEFAULT_TOKENS, constraints=constraints,
                    logprobs=body.logprobs, tokenizer=served.tokenizer, count=body.n,
                )  # fmt: skip
                text = given if isinstance(given, str) else served.tokenizer.decode(tokens)
                self._echoes += [text if body.echo else ""] * body.n
        except BaseException:
            for answer in answers:
                answer.close()
            raise
        return PendingAnswers.of("cmpl", served, total, answers)

    async def whole(self, pending: PendingAnswers) -> dict[str, Any]:
        """Waits for the answers, and returns the response."""
        tokens: list[list[Token]] = [[] for _ in pending.answers]
        async for index, piece in gather_pieces(pending.answers):
            tokens[index] += piece.tokens
        choices = [
            {
                "index": index,
                "text": self._echoes[index] + answer.text,
                "logprobs": self._logprobs(pending.served, tokens[index], 0),
                "finish_reason": answer.finish,
            }
            for index, answer in enumerate(pending.answers)
        ]
        return {**pending.head("text_completion"), "choices": choices, "usage": pending.usage()}

    async def events(self, pending: PendingAnswers) -> AsyncGenerator[bytes, None]:
        """Yields the answers as they come."""
        options = self._body.stream_options
        head = pending.head("text_completion")

        def chunk(index: int, text: str, **more: Any) -> bytes:
            choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
            return event({**head, "choices": [{**choice, **more}]})

        for index, echo in enumerate(self._echoes):
            if echo:
                yield chunk(index, echo)
        held: list[list[Token]] = [[] for _ in pending.answers]
        offsets = [0] * len(pending.answers)
        async for index, piece in gather_pieces(pending.answers):
            answer = pending.answers[index]
            held[index] += piece.tokens
            if piece.text:
                logprobs = self._logprobs(pending.served, held[index], offsets[index])
                offsets[index] += len(piece.text)
                held[index] = []
                yield chunk(index, piece.text, logprobs=logprobs)
            if answer.finish is not None:
                yield chunk(index, "", finish_reason=answer.finish)
        if options is not None and options.include_usage:
            yield event({**head, "choices": [], "usage": pending.usage()})
        yield event("[DONE]")

    def _logprobs(
        self, served: ServedModel, tokens: Sequence[Token], offset: int
    ) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        return completion_logprobs(served, tokens, top=self._body.logprobs, offset=offset)


def _prompts(body: CompletionBody) -> list[str | list[int]]:
    """Returns the prompts of a request, each as text or tokens."""
    found: list[str | list[int]] = inputs_of("prompt", body.prompt, most=_MAX_PROMPTS)
    wrong: tuple[str, str] | None = None
    if body.echo and body.logprobs is not None:
        wrong = ("echo", "must come without logprobs, as prompts have none; got both. Omit one.")
    elif body.stream_options is not None and not body.stream:
        wrong = ("stream_options", "must come with stream true; got it alone. Set that too.")
    if wrong is not None:
        name, text = wrong
        raise RequestError(f"{name}: {text}", code="request-field", parameter=name)
    return found


async def _tokens(served: ServedModel, given: str | list[int]) -> list[int]:
    if isinstance(given, str):
        return await served.encode(given)
    bound = served.model.vocabulary
    if not all(0 <= token < bound for token in given):
        raise RequestError(
            f"prompt: must have tokens from 0 to {bound - 1}; got others. POST /tokenize tells a "
            "text's tokens.",
            code="request-field",
            parameter="prompt",
        )
    return given
