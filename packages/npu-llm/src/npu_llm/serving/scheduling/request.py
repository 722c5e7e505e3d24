"""What is asked of a model by one request, and what is told while it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

__all__ = ["Constraint", "Ended", "Finish", "Listener", "Request", "Sampling", "Token", "Told"]

Finish = Literal["stop", "length", "cancelled", "error"]


class Constraint(Protocol):
    """Bounds which token may come next; one for each answer."""

    def mask(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits (vocabulary,) with -inf for tokens that may not come."""

    def advance(self, token: int) -> None:
        """Takes the token that was chosen."""

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: 0.0 for the most likely token; else what logits are divided by.
        top_k: how many of the most likely tokens are drawn from; 0 for all.
        top_p: the most likely tokens that have this share together are drawn from.
        min_p: tokens below this share of the most likely one's are not drawn.
        frequency_penalty: taken from a token's logit for each time that the answer has it.
        presence_penalty: taken from a token's logit if the answer has it.
        repetition_penalty: what positive logits of tokens in prompt and answer are divided by, and
            negative ones multiplied with.
        logit_bias: added to logits, by token.
        seed: makes the draws repeatable; None for other draws each time.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """One answer that is wanted.

    Attributes:
        prompt: the tokens to continue, at least one.
        max_new_tokens: how many tokens the answer has at most, at least 1.
        sampling: how they are chosen.
        ends: tokens that end the answer.
        logprobs: how many of the most likely tokens are told with each token; None for neither
            those nor the token's own logarithm.
        constraint: bounds the tokens; None for no bound.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    ends: frozenset[int] = frozenset()
    logprobs: int | None = None
    constraint: Constraint | None = None


@dataclass(frozen=True)
class Token:
    """A token of an answer.

    Attributes:
        id: which.
        logprob: logarithm of its probability, before sampling's settings; None if not asked for.
        top: the most likely tokens and the logarithms of their probabilities.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Ended:
    """The end of an answer; nothing follows.

    Attributes:
        finish: "stop" for an end token or a constraint that is met, "length" for the number of
            tokens asked for or the end of context or cache.
        cached_tokens: how many tokens of the prompt did not have to be read.
        error: what went wrong; None unless finish is "error".
    """

    finish: Finish
    cached_tokens: int = 0
    error: BaseException | None = None


Told = Token | Ended
# Called by the engine's thread; must return at once and not raise.
Listener = Callable[[Told], None]
