"""Sequence: one request in the engine, and the events that report its progress."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from npu_llm.engine.sampler import Sampler, Token
from npu_llm.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from npu_llm.structured_output import TokenConstraint

__all__ = ["Chunk", "Event", "FinishReason", "Finished", "OnEvent", "Sequence"]

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
# Called by the thread that steps the engine; must return at once and not raise.
OnEvent = Callable[[Event], object]


class Sequence:
    """One request.

    Attributes:
        seq_id: number of the request in order of arrival.
        params: its sampling parameters.
        token_ids: prompt and answer so far.
        num_prompt_tokens: length of the prompt.
        num_computed: tokens whose keys and values are in the cache.
        num_cached_tokens: prompt tokens that were in the cache when the sequence first ran.
        is_cancelled: whether the client has cancelled it.
        has_started: whether it has run.
        sampler: chooses its tokens.
    """

    def __init__(
        self,
        seq_id: int,
        prompt: Several[int],
        params: SamplingParams,
        on_event: OnEvent,
        constraint: TokenConstraint | None = None,
    ) -> None:
        self.seq_id = seq_id
        self.params = params
        self.token_ids = list(prompt)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed = 0
        self.num_cached_tokens = 0
        self.is_cancelled = False
        self.has_started = False
        self.sampler = Sampler(params, prompt, constraint)
        self._on_event = on_event

    @property
    def num_pending(self) -> int:
        """Tokens that must still be read."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_answer_tokens(self) -> int:
        """Length of the answer so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether only the last sampled token is pending."""
        return self.num_pending == 1 and self.num_answer_tokens > 0

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
    """The tokens of one sequence that a step reads.

    Attributes:
        sequence: the sequence.
        num_tokens: number of its next tokens.
    """

    sequence: Sequence
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Whether no token is pending after it, so that the next one can be sampled."""
        return self.num_tokens == self.sequence.num_pending
