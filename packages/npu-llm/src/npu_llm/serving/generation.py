"""TextRequest: a request for text without its protocol; Generation: the answers to it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from npu_llm.chat.tool_calls import (
    Call,
    CallReader,
    CallStyle,
    call_schema,
    read_calls,
    style_of,
)
from npu_llm.engine.sampler import Token
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.engine.sequence import Request
from npu_llm.serving.answer import Answer, Piece, gather_pieces
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.request_error import RequestError
from npu_llm.structured_output import Form
from npu_llm.tokenizer.tokenizer import Message

__all__ = [
    "Choice",
    "Conversation",
    "Delta",
    "Generation",
    "Prompt",
    "TextRequest",
    "ToolChoice",
    "Usage",
]

_MAX_TOKENS = 4096  # of an answer, where neither the request nor the context sets a bound
_MIN_TEMPERATURE = 1e-3

# The name of a function, or one of these.
ToolChoice = Literal["auto", "required"] | str


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages to be continued by an answer.

    Attributes:
        messages: oldest first, as chat templates take them.
        tools: functions in OpenAI's form, {"type": "function", "function": {...}}; those that the
            answer may call.
        tool_choice: whether one of them must be called, and which.
        template_options: other options of the chat template.
        continues_last: whether the answer continues the last message instead of following it.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = "auto"
    template_options: Mapping[str, Any] = field(default_factory=dict)
    continues_last: bool = False


@dataclass(frozen=True)
class Text:
    """A text to be continued.

    Attributes:
        text: the text.
        has_special_tokens: whether the tokenizer puts its special tokens around it.
    """

    text: str
    has_special_tokens: bool = True


Prompt = Text | Sequence[int] | Conversation


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """A request for answers to one prompt or several.

    Attributes:
        prompts: at least one.
        count: answers to each prompt.
        candidates: answers from which those of the highest mean log probability are chosen; None
            for `count`.
        sampling: settings of SamplingParams that take the place of the model's own.
        max_tokens: of each answer; None for as many as the context has room for; 0 for none, where
            the log probabilities of the prompt are wanted.
        logprobs: number of most likely tokens to report with each token; None for none.
        scores_prompt: whether to report log probabilities of the prompt too.
        ignores_ends: whether the model's end tokens do not end an answer.
        includes_stop: whether a stop string is part of the answer.
        skips_special_tokens: whether answers are without special tokens.
        make_form: returns the form of the answers; None for any.
        cache_salt: cached prefixes are shared with requests of the same salt only.
        uses_cache: whether cached prefixes may be used.
    """

    prompts: Sequence[Prompt]
    count: int = 1
    candidates: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    logprobs: int | None = None
    scores_prompt: bool = False
    ignores_ends: bool = False
    includes_stop: bool = False
    skips_special_tokens: bool = True
    make_form: Callable[[], Form] | None = None
    cache_salt: str | None = None
    uses_cache: bool = True


@dataclass(frozen=True)
class Delta:
    """What came of one answer since its last delta.

    Attributes:
        index: of the answer.
        text: more of its content.
        tokens: those of the content.
        calls: calls of tools.
        finish: why it ended: "stop" or "length"; None before the end.
    """

    index: int
    text: str = ""
    tokens: tuple[Token, ...] = ()
    calls: tuple[Call, ...] = ()
    finish: str | None = None


@dataclass
class Choice:
    """A whole answer; attributes as those of Delta.

    Attributes:
        prompt: tokens of its prompt.
        prompt_tokens: the same after the first with their log probabilities, if requested.
        stop: the stop string or the token that ended it.
    """

    prompt: Sequence[int]
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    finish: str = ""
    prompt_tokens: Sequence[Token] = ()
    stop: str | int | None = None


@dataclass(frozen=True)
class Usage:
    """How many tokens were read and written.

    Attributes:
        prompt, answer: of all prompts, and of all answers.
        cached: of the first prompt, those that were in the cache.
    """

    prompt: int
    answer: int
    cached: int


class Generation:
    """The answers to a request, which a model is generating.

    Attributes:
        served: the model.
        request: the request.
        prompts: the tokens of each prompt.
        answers: to each prompt, in their order.
    """

    def __init__(
        self,
        served: ServedModel,
        request: TextRequest,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Answer],
    ) -> None:
        self.served = served
        self.request = request
        self.prompts = prompts
        self.answers = answers
        self._per_prompt = len(answers) // len(prompts)

    @classmethod
    async def start(cls, served: ServedModel, request: TextRequest) -> Generation:
        """Submits all answers to a request, or none of them.

        Raises:
            RequestError: [request-unsupported] for tools of a model that knows none.
            NpuError: as the tokenizer, the form and Engine.submit_all do.
        """
        per_prompt = request.candidates or request.count
        served.engine.check_count(per_prompt * len(request.prompts))
        _check_tokens(served, "logit_bias", request.sampling.get("logit_bias", ()))
        readers = [_reading(served, prompt) for prompt in request.prompts]
        prompts = [await encode_prompt(served, prompt) for prompt in request.prompts]
        asked: list[Request] = []
        answers: list[Answer] = []
        for prompt, given, reading in zip(prompts, request.prompts, readers, strict=True):
            make = _form(request, given, reading)
            for index in range(per_prompt):
                params = _params(served, request, len(prompt), index)
                answer = Answer(
                    params,
                    served.tokenizer,
                    includes_stop=request.includes_stop,
                    skips_special_tokens=request.skips_special_tokens and reading is None,
                )
                answers.append(answer)
                asked.append(
                    Request(
                        prompt=prompt,
                        params=params,
                        on_event=answer.listen,
                        on_prompt=answer.listen_to_prompt,
                        constraint=None if make is None else await served.constraint(make),
                        cache_salt=request.cache_salt if request.uses_cache else uuid.uuid4().hex,
                    )
                )
        for answer, handle in zip(answers, served.engine.submit_all(asked), strict=True):
            answer.follow(handle)
        return cls(served, request, prompts, answers)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yields what comes until all answers have ended.

        Raises:
            ServerError: [server-stopping] if the server ends first.
            Exception: the failure of a step.
        """
        readers = [
            _Reader(_reading(self.served, self.request.prompts[index // self._per_prompt]))
            for index in range(len(self.answers))
        ]
        async for index, piece in gather_pieces(self.answers):
            delta = readers[index].delta(index, piece, self.answers[index].finish)
            if self.request.max_tokens == 0:  # the one that was generated is not wanted
                delta = Delta(index, finish=delta.finish)
            if delta.text or delta.calls or delta.finish:
                yield delta

    async def choices(self) -> list[Choice]:
        """Waits for all answers, and returns them; raises as `deltas` does."""
        found = [
            Choice(self.prompts[index // self._per_prompt]) for index in range(len(self.answers))
        ]
        async for delta in self.deltas():
            choice = found[delta.index]
            choice.text += delta.text
            choice.tokens += delta.tokens
            choice.calls += delta.calls
            choice.finish = delta.finish or choice.finish
        for choice, answer in zip(found, self.answers, strict=True):
            choice.prompt_tokens, choice.stop = answer.prompt_tokens, answer.stop
        return self._best(found)

    def usage(self) -> Usage:
        """Returns how many tokens were read and written so far."""
        written = 0
        if self.request.max_tokens != 0:
            written = sum(answer.tokens for answer in self.answers)
        return Usage(sum(map(len, self.prompts)), written, self.answers[0].cached_tokens)

    def close(self) -> None:
        """Ends the answers; those that have ended stay as they are."""
        for answer in self.answers:
            answer.close()

    def _best(self, found: list[Choice]) -> list[Choice]:
        """Returns `count` answers to each prompt, the most likely ones."""
        kept: list[Choice] = []
        for start in range(0, len(found), self._per_prompt):
            some = found[start : start + self._per_prompt]
            if len(some) > self.request.count:
                some.sort(key=_mean_logprob, reverse=True)
            kept += some[: self.request.count]
        return kept


def _mean_logprob(choice: Choice) -> float:
    values = [token.logprob or 0.0 for token in choice.tokens]
    return sum(values) / max(len(values), 1)


async def encode_prompt(served: ServedModel, prompt: Prompt) -> Sequence[int]:
    if isinstance(prompt, Text):
        return await served.encode(prompt.text, special=prompt.has_special_tokens)
    if isinstance(prompt, Conversation):
        return await served.encode_chat(
            prompt.messages,
            tools=list(prompt.tools) or None,
            template_options=prompt.template_options,
            continues_last=prompt.continues_last,
        )
    _check_tokens(served, "prompt", prompt)
    return prompt


def _check_tokens(served: ServedModel, field: str, tokens: Iterable[int]) -> None:
    bound = served.model.vocabulary
    if not all(0 <= token < bound for token in tokens):
        raise RequestError(
            f"{field}: must have tokens from 0 to {bound - 1}; got others. POST /tokenize returns "
            "a text's tokens.",
            code="request-field",
            parameter=field,
        )


def _params(
    served: ServedModel, request: TextRequest, prompt_tokens: int, index: int
) -> SamplingParams:
    """Returns the parameters of one answer to a prompt."""
    params = replace(served.sampling, **request.sampling)
    if 0 < params.temperature < _MIN_TEMPERATURE:
        # No second token has a chance that float32 can represent.
        params = replace(params, temperature=0.0)
    most = request.max_tokens
    if most is None:
        context = served.context_length
        most = _MAX_TOKENS if context is None else max(context - prompt_tokens, 1)
    logprobs = request.logprobs
    is_chosen = request.candidates is not None and request.candidates > request.count
    ends = frozenset() if request.ignores_ends else served.ends
    return replace(
        params,
        max_new_tokens=max(most, 1),
        # Torch takes seeds of 64 bits.
        seed=None if params.seed is None else (params.seed + index) % (1 << 63),
        stop_token_ids=params.stop_token_ids | ends,
        logprobs=0 if logprobs is None and is_chosen else logprobs,
        prompt_logprobs=(logprobs or 0) if request.scores_prompt else None,
    )


# Calls of tools in answers


@dataclass(frozen=True)
class _Reading:
    """How calls in an answer are written."""

    style: CallStyle
    names: tuple[str, ...]
    must_call: bool


def _reading(served: ServedModel, prompt: Prompt) -> _Reading | None:
    """Returns how calls are written; None for answers that may not call."""
    if not isinstance(prompt, Conversation) or not prompt.tools:
        return None
    style = style_of(served.tokenizer.chat_template)
    if style is None:
        raise RequestError(
            "tools: must be sent to a model whose chat template describes them; got "
            f"{served.name}. Omit them.",
            code="request-unsupported",
            parameter="tools",
        )
    names = tuple(tool["function"]["name"] for tool in prompt.tools)
    must_call = prompt.tool_choice != "auto"
    return _Reading(style, names, must_call)


def _form(
    request: TextRequest, prompt: Prompt, reading: _Reading | None
) -> Callable[[], Form] | None:
    """Returns what makes the form of an answer; None for any."""
    if reading is None or not reading.must_call or not isinstance(prompt, Conversation):
        return request.make_form
    if request.make_form is not None:
        raise RequestError(
            "response_format: must be omitted where a tool must be called; got both. Omit one.",
            code="request-field",
            parameter="response_format",
        )
    chosen = prompt.tool_choice if prompt.tool_choice in reading.names else None
    functions = [tool["function"] for tool in prompt.tools]
    schema = call_schema(functions, reading.style, name=chosen)
    return lambda: Form.of_schema(schema)


class _Reader:
    """Separates content and calls of an answer."""

    def __init__(self, reading: _Reading | None) -> None:
        self._reading = reading
        self._text = ""
        self._calls: CallReader | None = None
        if reading is not None:
            style: CallStyle = "bare" if reading.must_call else reading.style
            self._calls = CallReader(style, reading.names)
        self._held: list[Token] = []

    def delta(self, index: int, piece: Piece, finish: str | None) -> Delta:
        """Returns what a piece adds."""
        self._held += piece.tokens
        text, calls = piece.text, []
        if self._reading is not None and self._calls is not None:
            self._text += piece.text
            text = self._calls.take(piece.text)
            if finish is not None and self._reading.must_call:
                calls = read_calls(self._text, "bare", self._reading.names)
                text = "" if calls else self._text
            elif finish is not None:
                rest, calls = self._calls.end()
                text += rest
        tokens: tuple[Token, ...] = ()
        if text or finish is not None:
            tokens, self._held = tuple(self._held), []
        return Delta(index, text, tokens, tuple(calls), finish)
