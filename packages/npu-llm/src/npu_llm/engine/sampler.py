"""Sampler: selects the next token of each answer from its logits and sampling parameters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_llm.engine.sampling_params import SamplingParams
from npu_ops.kernel_programs.sampler import argmax
from npu_ops.kernel_programs.sampler import sample as sample_rows

if TYPE_CHECKING:
    from npu_llm.structured_output import TokenConstraint

__all__ = ["Logits", "Sampler", "Token", "sample", "score_tokens"]

Logits = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Token:
    """A token of an answer.

    Attributes:
        id: token id.
        logprob: its log probability before sampling parameters; None if not requested.
        top: the most likely tokens and their log probabilities.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample(samplers: Sequence[Sampler], logits: Logits) -> list[Token | Exception]:
    """Samples the next token of each answer.

    Args:
        samplers: one per answer.
        logits: (answers, vocabulary) float32; not modified.

    Returns:
        Per answer the token, or the failure of its constraint or logits.
    """
    found: list[Token | Exception] = []
    for sampler, row in zip(samplers, np.asarray(logits), strict=True):
        try:
            found.append(sampler.next(row))
        except Exception as failure:  # noqa: BLE001  # a constraint may raise anything
            found.append(failure)
    return found


def score_tokens(logits: Logits, tokens: Sequence[int], *, num_top: int) -> list[Token]:
    """Returns tokens with their log probabilities.

    Args:
        logits: (tokens, vocabulary) float32.
        tokens: one per row.
        num_top: number of most likely tokens to report with each.
    """
    highest = logits.max(-1, keepdims=True)
    sums = np.exp(logits - highest).sum(-1, keepdims=True)
    logprobs = logits - highest - np.log(sums)
    own = logprobs[np.arange(len(tokens)), tokens]
    count = min(num_top, logprobs.shape[-1])
    best = np.argpartition(-logprobs, max(count - 1, 0), -1)[:, :count]
    values = np.take_along_axis(logprobs, best, -1)
    order = np.argsort(-values, -1, kind="stable")
    best, values = (np.take_along_axis(one, order, -1) for one in (best, values))
    return [
        Token(token, logprob, tuple(zip(top, its, strict=True)))
        for token, logprob, top, its in zip(
            tokens, own.tolist(), best.tolist(), values.tolist(), strict=True
        )
    ]


class Sampler:
    """The sampling state of one answer: random numbers, token counts and constraint."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        constraint: TokenConstraint | None = None,
    ) -> None:
        self._params = params
        self._constraint = constraint
        self._generator = random.Random(params.seed)
        self._repeats = params.repetition_penalty != 1.0
        self._penalizes = bool(params.frequency_penalty or params.presence_penalty or self._repeats)
        self._counts: Counter[int] = Counter()  # of the answer's tokens
        self._seen: set[int] = set(prompt) if self._repeats else set()
        self._bias = (
            np.array(list(params.logit_bias), np.int64),
            np.array(list(params.logit_bias.values()), np.float32),
        )
        self._num_before_end = params.min_new_tokens if params.stop_token_ids else 0

    @property
    def is_over(self) -> bool:
        """Whether the constraint allows no further token."""
        return self._constraint is not None and self._constraint.is_over

    def next(self, logits: Logits) -> Token:
        """Samples a token, and updates the state with it.

        Args:
            logits: (vocabulary,) float32; not modified.

        Raises:
            ArithmeticError: if no token can be sampled.
        """
        params = self._params
        scores = self._penalized(logits)
        if self._constraint is not None:
            import torch  # required by form constraints

            scores = self._constraint.mask(torch.from_numpy(scores)).numpy()
        elif self._num_before_end > 0:
            self._num_before_end -= 1
            scores = scores.copy()
            scores[list(params.stop_token_ids)] = -np.inf
        if params.temperature == 0.0:
            token: int | None = int(argmax(scores[None])[0])
        else:
            (token,) = sample_rows(scores[None], [params], [self._generator.random()])
        if token is None:
            raise ArithmeticError("no token can be drawn: its scores are NaN, or all are -inf")
        if self._penalizes:
            self._counts[token] += 1
            self._seen.add(token)
        if self._constraint is not None:
            self._constraint.advance(token)
        if params.logprobs is None:
            return Token(token)
        (found,) = score_tokens(logits[None], [token], num_top=params.logprobs)
        return found

    def _penalized(self, logits: Logits) -> Logits:
        """Returns the logits with penalties and bias."""
        params = self._params
        if not params.logit_bias and not self._penalizes:
            return logits
        scores = logits.copy()
        if self._repeats and self._seen:
            ids = np.array(sorted(self._seen))
            found, penalty = scores[ids], params.repetition_penalty
            scores[ids] = np.where(found > 0, found / penalty, found * penalty)
        if self._counts:
            ids = np.array(list(self._counts))
            counts = np.array(list(self._counts.values()), np.float32)
            scores[ids] -= counts * params.frequency_penalty + params.presence_penalty
        if params.logit_bias:
            ids, values = self._bias
            scores[ids] += values
        return scores
