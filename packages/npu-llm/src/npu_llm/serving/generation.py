"""TextRequest: a protocol-independent request for text; Generation: its answers."""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from npu_llm.chat.output_parser import Delta as Part
from npu_llm.chat.output_parser import OutputParser
from npu_llm.chat.tool_calls import Call
from npu_llm.engine.sampler import Token
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.engine.sequence import Request
from npu_llm.serving.answer import Answer, Piece, gather_pieces
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.request_error import RequestError
from npu_llm.structured_output import Form, TokenConstraint
from npu_llm.tokenizer.tokenizer import Message

__all__ = [
    "Choice",
    "Conversation",
    "Delta",
    "Gap",
    "Generation",
    "Prompt",
    "TextRequest",
    "ToolChoice",
    "Usage",
]

_MAX_TOKENS = 4096  # of an answer without a limit from the request or the context
_MIN_TEMPERATURE = 1e-3

# The name of a function, or one of these.
ToolChoice = Literal["auto", "required"] | str


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages to answer.

    Attributes:
        messages: oldest first, as chat templates take them.
        tools: functions that the answer may call, in OpenAI's form {"type": "function", "function":
            {...}}.
        tool_choice: whether a function must be called, and which.
        is_parallel: whether the answer may call several.
        template_options: other options of the chat template.
        thinking_budget: maximum number of tokens of reasoning; None for no limit.
        continues_last: whether the answer continues the last message instead of following it.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = "auto"
    is_parallel: bool = True
    template_options: Mapping[str, Any] = field(default_factory=dict)
    thinking_budget: int | None = None
    continues_last: bool = False


@dataclass(frozen=True)
class Text:
    """A text to continue.

    Attributes:
        text: the text.
        has_special_tokens: whether the tokenizer adds its special tokens.
    """

    text: str
    has_special_tokens: bool = True


@dataclass(frozen=True)
class Gap:
    """A text to fill in between two others.

    Attributes:
        before, after: the texts around it.
    """

    before: str
    after: str


Prompt = Text | Gap | Sequence[int] | Conversation


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """A request for answers to one or more prompts.

    Attributes:
        prompts: at least one.
        count: answers to each prompt.
        candidates: number of answers to sample for each prompt, of which the `count` with the
            highest mean log probability are kept; None for `count`.
        sampling: sampling parameters that override the model's defaults.
        default_sampling: sampling parameters without a value in `sampling` and in the model.
        max_tokens: maximum length of each answer; None for the rest of the context; 0 to score the
            prompt only.
        logprobs: number of most likely tokens to report with each token; None for none.
        scores_prompt: whether to report log probabilities of the prompt too.
        ignores_ends: whether the model's end tokens do not end an answer.
        includes_stop: whether a stop string is part of the answer.
        skips_special_tokens: whether answers omit special tokens.
        streams_calls: whether tool calls are streamed before they are complete.
        make_form: returns the form that constrains the answers; None for free text.
        cache_salt: cached prefixes are shared with requests of the same salt only.
        uses_cache: whether cached prefixes may be used.
    """

    prompts: Sequence[Prompt]
    count: int = 1
    candidates: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    default_sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    logprobs: int | None = None
    scores_prompt: bool = False
    ignores_ends: bool = False
    includes_stop: bool = False
    skips_special_tokens: bool = True
    streams_calls: bool = False
    make_form: Callable[[], Form] | None = None
    cache_salt: str | None = None
    uses_cache: bool = True


@dataclass(frozen=True)
class Delta:
    """The new part of one answer since its last delta.

    Attributes:
        index: index of the answer.
        reasoning: new text of its reasoning.
        text: new text of its content.
        tokens: tokens of the content.
        parts: beginnings and arguments of tool calls.
        finish: finish reason, "stop" or "length"; None before the end.
    """

    index: int
    text: str = ""
    tokens: tuple[Token, ...] = ()
    reasoning: str = ""
    parts: tuple[Part, ...] = ()
    finish: str | None = None


@dataclass
class Choice:
    """A whole answer; further attributes as in Delta.

    Attributes:
        calls: its tool calls.
        prompt: tokens of its prompt.
        prompt_tokens: tokens of the prompt after the first, with log probabilities, if requested.
        stop: the stop string or the token that ended it.
        end: that token with its log probability.
    """

    prompt: Sequence[int]
    text: str = ""
    reasoning: str = ""
    tokens: list[Token] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    finish: str = ""
    prompt_tokens: Sequence[Token] = ()
    stop: str | int | None = None
    end: Token | None = None


@dataclass(frozen=True)
class Usage:
    """Token counts of a request.

    Attributes:
        prompt, answer: tokens of all prompts, and of all answers.
        reasoning: tokens of the answers that are reasoning.
        cached: tokens of the first prompt that were in the cache.
    """

    prompt: int
    answer: int
    reasoning: int
    cached: int


class Generation:
    """The answers to a request in progress.

    Attributes:
        served: the model.
        request: the request.
        prompts: the tokens of each prompt.
        answers: the answers to each prompt, in order.
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
        self._parsers = [self._parser(index) for index in range(len(answers))]

    @classmethod
    async def start(cls, served: ServedModel, request: TextRequest) -> Generation:
        """Submits all answers to a request, or none of them.

        Raises:
            RequestError: [request-unsupported] for tools if the chat template does not describe
                tools.
            NpuError: the errors of the tokenizer, the form and Engine.submit_all.
        """
        per_prompt = request.candidates or request.count
        served.engine.check_count(per_prompt * len(request.prompts))
        _check_tokens(served, "logit_bias", request.sampling.get("logit_bias", ()))
        for given in request.prompts:
            _check_tools(served, request, given)
        prompts = [await encode_prompt(served, prompt) for prompt in request.prompts]
        asked: list[Request] = []
        answers: list[Answer] = []
        for prompt, given in zip(prompts, request.prompts, strict=True):
            is_raw = not isinstance(given, Conversation) or not request.skips_special_tokens
            for index in range(per_prompt):
                params = _params(served, request, len(prompt), index)
                answer = Answer(
                    params,
                    served.tokenizer if is_raw else served.output_format.decoder,
                    includes_stop=request.includes_stop,
                    skips_special_tokens=request.skips_special_tokens,
                )
                answers.append(answer)
                asked.append(
                    Request(
                        prompt=prompt,
                        params=params,
                        on_event=answer.listen,
                        on_prompt=answer.listen_to_prompt,
                        constraint=await _constraint(served, request, given, prompt),
                        cache_salt=request.cache_salt if request.uses_cache else uuid.uuid4().hex,
                    )
                )
        for answer, handle in zip(answers, served.engine.submit_all(asked), strict=True):
            answer.follow(handle)
        return cls(served, request, prompts, answers)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yields deltas until all answers have ended.

        Raises:
            ServerError: [server-stopping] if the server ends first.
            Exception: the failure of a step.
        """
        readers = [_Reader(parser) for parser in self._parsers]
        async for index, piece in gather_pieces(self.answers):
            delta = readers[index].delta(index, piece, self.answers[index].finish)
            if self.request.max_tokens == 0:  # the generated one is not part of the request
                delta = Delta(index, finish=delta.finish)
            if delta.text or delta.reasoning or delta.parts or delta.finish:
                yield delta

    async def choices(self) -> list[Choice]:
        """Waits for all answers and returns them; raises the errors of `deltas`."""
        found = [
            Choice(self.prompts[index // self._per_prompt]) for index in range(len(self.answers))
        ]
        async for delta in self.deltas():
            choice = found[delta.index]
            choice.text += delta.text
            choice.reasoning += delta.reasoning
            choice.tokens += delta.tokens
            choice.finish = delta.finish or choice.finish
        for choice, answer, parser in zip(found, self.answers, self._parsers, strict=True):
            choice.prompt_tokens = answer.prompt_tokens
            choice.stop, choice.end = answer.stop, answer.end
            choice.calls = [] if parser is None else parser.parsed.calls
        return self._best(found)

    def usage(self) -> Usage:
        """Returns the token counts so far."""
        written = reasoning = 0
        if self.request.max_tokens != 0:
            written = sum(answer.tokens for answer in self.answers)
            reasoning = sum(
                bisect_left(answer.starts, end) - bisect_left(answer.starts, start)
                for answer, parser in zip(self.answers, self._parsers, strict=True)
                for start, end in (() if parser is None else parser.thoughts)
            )
        cached = self.answers[0].cached_tokens
        return Usage(sum(map(len, self.prompts)), written, reasoning, cached)

    def close(self) -> None:
        """Ends the answers; finished ones do not change."""
        for answer in self.answers:
            answer.close()

    def _parser(self, index: int) -> OutputParser | None:
        """Returns the parser of an answer's reasoning, text and calls; None for plain text."""
        place = index // self._per_prompt
        given = self.request.prompts[place]
        if not isinstance(given, Conversation):
            return None
        return self.served.output_format.parser(
            self.prompts[place],
            [tool["function"] for tool in given.tools],
            is_parallel=given.is_parallel,
            is_stream=self.request.streams_calls,
        )

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
    if isinstance(prompt, Gap):
        return await served.encode_gap(prompt.before, prompt.after, field="suffix")
    if isinstance(prompt, Conversation):
        return await served.encode_chat(
            prompt.messages,
            tools=list(prompt.tools) or None,
            template_options=_template_options(prompt),
            continues_last=prompt.continues_last,
        )
    _check_tokens(served, "prompt", prompt)
    return prompt


def _check_tokens(served: ServedModel, field: str, tokens: Collection[int]) -> None:
    bound = served.model.vocabulary
    if min(tokens, default=0) < 0 or max(tokens, default=0) >= bound:
        raise RequestError(
            f"`{field}` must have token ids from 0 to {bound - 1}, got others. Get a text's "
            "tokens with POST /tokenize.",
            code="request-field",
            parameter=field,
        )


def _params(
    served: ServedModel, request: TextRequest, prompt_tokens: int, index: int
) -> SamplingParams:
    """Returns the parameters of one answer to a prompt."""
    params = SamplingParams(**{**request.default_sampling, **served.sampling, **request.sampling})
    if 0 < params.temperature < _MIN_TEMPERATURE:
        # In float32, the probability of every other token is zero.
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
        # torch accepts 64-bit seeds.
        seed=None if params.seed is None else (params.seed + index) % (1 << 63),
        stop_token_ids=params.stop_token_ids | ends,
        logprobs=0 if logprobs is None and is_chosen else logprobs,
        prompt_logprobs=(logprobs or 0) if request.scores_prompt else None,
    )


def _template_options(prompt: Conversation) -> dict[str, Any]:
    """Returns the options of the chat template, under the template's names."""
    options = dict(prompt.template_options)
    if "enable_thinking" in options:
        options.setdefault("thinking", options["enable_thinking"])
    return options


# Reasoning, calls and forms of answers


def _check_tools(served: ServedModel, request: TextRequest, prompt: Prompt) -> None:
    """Raises RequestError for tools without a template for them, or a form with a required call."""
    if not isinstance(prompt, Conversation) or not prompt.tools:
        return
    if served.output_format.calls is None:
        raise RequestError(
            "`tools` must be omitted for a model without a chat template for them, got some for "
            f"{served.name}. Omit them.",
            code="request-unsupported",
            parameter="tools",
        )
    if prompt.tool_choice != "auto" and request.make_form is not None:
        raise RequestError(
            "`response_format` must be omitted if a tool call is required, got both. Omit one.",
            code="request-field",
            parameter="response_format",
        )


async def _constraint(
    served: ServedModel, request: TextRequest, given: Prompt, prompt: Sequence[int]
) -> TokenConstraint | None:
    """Returns the constraint of an answer; None if every token is allowed."""
    make: Callable[[], Form | tuple[Form, Form]] | None = request.make_form
    if not isinstance(given, Conversation):
        return await served.constraint(make)
    if given.tools and given.tool_choice != "auto":
        functions = [tool["function"] for tool in given.tools]
        is_any = given.tool_choice == "required"

        def make_call() -> tuple[Form, Form]:
            return served.output_format.call_forms(
                functions,
                name=None if is_any else given.tool_choice,
                is_parallel=is_any and given.is_parallel,
            )

        make = make_call
    return await served.constraint(make, conversation=prompt, budget=given.thinking_budget)


class _Reader:
    """Converts the pieces of an answer into deltas."""

    def __init__(self, parser: OutputParser | None) -> None:
        self._parser = parser
        self._held: list[Token] = []

    def delta(self, index: int, piece: Piece, finish: str | None) -> Delta:
        """Returns the delta of a piece."""
        self._held += piece.tokens
        parts = [Part("content", piece.text)]
        if self._parser is not None:
            parts = self._parser.take(piece.text)
            parts += self._parser.end() if finish is not None else []
        text = "".join(part.text for part in parts if part.kind == "content")
        reasoning = "".join(part.text for part in parts if part.kind == "reasoning")
        calls = tuple(part for part in parts if part.kind in ("call", "arguments"))
        tokens: tuple[Token, ...] = ()
        if text or finish is not None:
            tokens, self._held = tuple(self._held), []
        elif reasoning or calls:
            self._held = []
        return Delta(index, text, tokens, reasoning, calls, finish)
