"""Chooses the next tokens of answers, each with a generator of its own."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from npu_llm.serving.scheduling.request import Constraint, Request, Token
from npu_ops.kernel_programs.sampler import argmax, sample

__all__ = ["Chooser", "choose"]

_Result = TypeVar("_Result")


def choose(choosers: Sequence[Chooser], logits: torch.Tensor) -> list[Token | Exception]:
    """Chooses the next token of each answer, and remembers it.

    Args:
        choosers: of the answers.
        logits: (answers, vocabulary) float32; not changed.

    Returns:
        For each answer its token, or what made its choice fail; the others have theirs.
    """
    return [_caught(_next, one, row) for one, row in zip(choosers, logits.unbind(), strict=True)]


def _next(chooser: Chooser, logits: torch.Tensor) -> Token:
    """Chooses the next token of an answer; row by row, as rows are not moved for it.

    torch would copy rows together with its own threads, on the cores of the next step.
    """
    scores = chooser.scores(logits)[None]
    if chooser.draws:
        (token,) = sample(scores, [chooser.sampling], [chooser.point()])
    else:
        token = int(argmax(scores))
    return chooser.settle(token, logits)


def _caught(call: Callable[..., _Result], *arguments: Any) -> _Result | Exception:
    """Returns what a call returns, or raises: a failure concerns the answer that it is for."""
    try:
        return call(*arguments)
    except Exception as failure:  # noqa: BLE001  # a constraint's may be anything
        return failure


class Chooser:
    """The state of one answer's choices: its generator, and which tokens it has.

    Attributes:
        sampling: how its tokens are chosen.
    """

    def __init__(self, request: Request) -> None:
        self.sampling = request.sampling
        self._constraint: Constraint | None = request.constraint
        self._logprobs = request.logprobs
        self._generator = random.Random(request.sampling.seed)  # None: from the system
        self._answer: Counter[int] = Counter()
        self._seen: set[int] = set(request.prompt) if self._repeats else set()

    @property
    def is_over(self) -> bool:
        """Whether the constraint allows nothing more."""
        return self._constraint is not None and self._constraint.is_over

    @property
    def draws(self) -> bool:
        """Whether the choice is drawn, not the most likely token."""
        return self.sampling.temperature != 0.0

    def scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits (vocabulary,) with bias and penalties, and -inf for what may not come."""
        scores = self._shifted(logits)
        return scores if self._constraint is None else self._constraint.mask(scores)

    def point(self) -> float:
        """Returns the next random number, 0 to 1, exclusive."""
        return self._generator.random()

    def settle(self, chosen: int | None, logits: torch.Tensor) -> Token:
        """Remembers a choice, and returns what is told of it.

        Args:
            chosen: the token; None if the scores allowed none.
            logits: (vocabulary,) float32.

        Raises:
            ArithmeticError: for None.
        """
        if chosen is None:
            raise ArithmeticError("no token can be drawn: its scores are NaN, or all are -inf")
        self._remember(chosen)
        if self._logprobs is None:
            return Token(chosen)
        shares = torch.log_softmax(logits, -1)
        values, places = torch.topk(shares, min(self._logprobs, len(shares)))
        top = tuple(zip(places.tolist(), values.tolist(), strict=True))
        return Token(chosen, float(shares[chosen]), top)

    @property
    def _repeats(self) -> bool:
        return self.sampling.repetition_penalty != 1.0

    @property
    def _penalizes(self) -> bool:
        sampling = self.sampling
        return bool(sampling.frequency_penalty or sampling.presence_penalty or self._repeats)

    def _remember(self, token: int) -> None:
        if self._penalizes:
            self._answer[token] += 1
            self._seen.add(token)
        if self._constraint is not None:
            self._constraint.advance(token)

    def _shifted(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits with bias and penalties."""
        sampling = self.sampling
        if not sampling.logit_bias and not self._penalizes:
            return logits
        scores = logits.clone()
        if self._repeats and self._seen:
            places = torch.tensor(sorted(self._seen))
            found = scores[places]
            penalty = sampling.repetition_penalty
            scores[places] = torch.where(found > 0, found / penalty, found * penalty)
        if self._answer:
            places = torch.tensor(list(self._answer))
            counts = torch.tensor(list(self._answer.values()), dtype=torch.float32)
            scores[places] -= counts * sampling.frequency_penalty + sampling.presence_penalty
        for token, bias in sampling.logit_bias.items():
            scores[token] += bias
        return scores
