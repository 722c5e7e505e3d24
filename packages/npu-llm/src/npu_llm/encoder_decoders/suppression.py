"""Tokens that are never to be chosen, without looking at the whole vocabulary for each.

transformers' processors compare every token with every suppressed one at each step: for the 90
tokens of Whisper's configs that takes as long as a step of its smallest model.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

__all__ = ["by_index"]


class _Suppressed(LogitsProcessor):  # type: ignore[misc]
    """Gives tokens the score -inf, at all lengths or at one.

    Attributes:
        tokens: (count,) int64, those that the vocabulary does not have included.
        length: at how many tokens so far; None for any number.
    """

    def __init__(self, tokens: torch.Tensor, length: int | None) -> None:
        self.tokens = tokens.flatten().to(torch.int64)
        self.length = length
        self._chosen = (0, self.tokens)  # those of a vocabulary of this size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns the scores (batch, vocabulary) of the next tokens."""
        if self.length is not None and input_ids.shape[-1] != self.length:
            return scores
        if self._chosen[0] != scores.shape[-1]:
            exist = (self.tokens >= 0) & (self.tokens < scores.shape[-1])
            self._chosen = (scores.shape[-1], self.tokens[exist].to(scores.device))
        return scores.index_fill(-1, self._chosen[1], -torch.inf)


class _Processors(LogitsProcessorList):  # type: ignore[misc]
    """A list that does not ask each processor for its signature at each token."""

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Returns the scores after all processors."""
        if kwargs:
            return super().__call__(input_ids, scores, **kwargs)
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


def by_index(processors: LogitsProcessorList) -> LogitsProcessorList:
    """Returns processors that give the same scores, without comparing tokens with each other."""
    return _Processors([_quicker(one) for one in processors])


def _quicker(processor: LogitsProcessor) -> LogitsProcessor:
    if type(processor) is SuppressTokensLogitsProcessor:
        return _Suppressed(processor.suppress_tokens, None)
    if type(processor) is SuppressTokensAtBeginLogitsProcessor:
        return _Suppressed(processor.begin_suppress_tokens, processor.begin_index)
    return processor
