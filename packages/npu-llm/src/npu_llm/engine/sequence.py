"""Sequence: one request in the engine, and the events that report its progress."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from npu_llm.engine.sampler import Logits, Sampler, Token, score_tokens
from npu_llm.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from npu_llm.structured_output import TokenConstraint

__all__ = [
    "Chunk",
    "Event",
    "FinishReason",
    "Finished",
    "OnEvent",
    "Request",
    "Sequence",
]

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Finished:
    """The end of an answer; no event follows.

    Attributes:
        reason: "stop" for an end token or a completed constraint, "length" for the maximum number
            of tokens or the end of context or cache.
        num_cached_tokens: prompt tokens that were in the cache.
        error: the failure; None unless the reason is "error".
    """

    reason: FinishReason
    num_cached_tokens: int = 0
    error: BaseException | None = None


Event = Token | Finished
# Called by the thread that runs steps; must return at once and not raise.
OnEvent = Callable[[Event], object]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to an engine.

    Attributes:
        prompt: tokens to continue.
        params: sampling parameters.
        on_event: called by the thread that runs the steps, with each Token and a last Finished.
        on_prompt: called in the same way with the tokens of the prompt after its first, if their
            log probabilities are requested.
        constraint: restricts the tokens of structured output; None for no restriction.
        cache_salt: cached prefixes are shared only between requests with the same salt.
    """

    prompt: Several[int]
    params: SamplingParams
    on_event: OnEvent
    on_prompt: Callable[[tuple[Token, ...]], object] | None = None
    constraint: TokenConstraint | None = None
    cache_salt: str | None = None


class Sequence:
    """One request.

    Attributes:
        seq_id: number of the request in order of arrival.
        params: its sampling parameters.
        cache_salt: see Request.
        token_ids: prompt and answer so far.
        num_prompt_tokens: length of the prompt.
        num_computed: tokens whose keys and values are in the cache.
        num_cached_tokens: prompt tokens that were in the cache when the sequence first ran.
        is_cancelled: whether the client has cancelled it.
        has_started: whether it has run.
        sampler: samples its tokens.
    """

    def __init__(self, seq_id: int, request: Request) -> None:
        self.seq_id = seq_id
        self.params = request.params
        self.cache_salt = request.cache_salt
        self.token_ids = list(request.prompt)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed = 0
        self.num_cached_tokens = 0
        self.is_cancelled = False
        self.has_started = False
        self.sampler = Sampler(request.params, request.prompt, request.constraint)
        self._on_event = request.on_event
        self._on_prompt = request.on_prompt
        self._scored: list[Token] = []

    @property
    def num_pending(self) -> int:
        """Number of tokens that are not in the cache yet."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_answer_tokens(self) -> int:
        """Length of the answer so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether only the last sampled token is pending."""
        return self.num_pending == 1 and self.num_answer_tokens > 0

    @property
    def scores_prompt(self) -> bool:
        """Whether log probabilities of its prompt are still missing."""
        is_whole = len(self._scored) >= self.num_prompt_tokens - 1
        return self.params.prompt_logprobs is not None and not is_whole

    def score(self, logits: Logits) -> None:
        """Receives the logits of the prompt tokens in a step.

        Args:
            logits: (tokens, vocabulary) float32, before num_computed is updated.
        """
        first = self.num_computed + 1
        known = len(self._scored) + 1 - first  # of a preempted sequence that is prefilled again
        following = self.token_ids[first : min(first + len(logits), self.num_prompt_tokens)]
        if following[known:]:
            self._scored += score_tokens(
                logits[known : len(following)],
                following[known:],
                num_top=self.params.prompt_logprobs or 0,
            )
        if self._on_prompt is not None and not self.scores_prompt:
            self._on_prompt(tuple(self._scored))

    def append(self, token: Token) -> FinishReason | None:
        """Appends a token and reports it; returns the reason if the answer ends with it."""
        self.token_ids.append(token.id)
        self._on_event(token)
        if token.id in self.params.stop_token_ids or self.sampler.is_over:
            return "stop"
        return "length" if self.num_answer_tokens >= self.params.max_new_tokens else None

    def finish(self, reason: FinishReason, error: BaseException | None = None) -> None:
        """Reports the end of the answer."""
        self._on_event(Finished(reason, self.num_cached_tokens, error))


@dataclass(frozen=True)
class Chunk:
    """The tokens of one sequence in a step.

    Attributes:
        sequence: the sequence.
        num_tokens: number of its next tokens.
    """

    sequence: Sequence
    num_tokens: int

    @property
    def num_logits(self) -> int:
        """The number of its last tokens whose logits are needed."""
        return self.num_tokens if self.sequence.scores_prompt else int(self.is_last)

    @property
    def is_last(self) -> bool:
        """Whether no token is pending after it, so that the next one can be sampled."""
        return self.num_tokens == self.sequence.num_pending
