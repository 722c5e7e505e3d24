"""AnswerStreamer: writes the tokens of transformers' generate as they come, and measures them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from npu_llm.cli.answer_text.word_wrap import text_writer
from npu_llm.tokenizer.detokenizer import Detokenizer

__all__ = ["AnswerStreamer"]


class AnswerStreamer:
    """A streamer of transformers for one answer.

    Attributes:
        tokens: ids of the answer so far.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], object] | None = None) -> None:
        """Starts with an empty answer.

        Args:
            tokenizer: the model's.
            write: takes the text; text_writer() by default.
        """
        self.tokens: list[int] = []
        self._text = Detokenizer(tokenizer)
        self._write = write or text_writer()
        self._times: list[float] = []
        self._started_s = time.perf_counter()
        self._saw_prompt = False

    prompt_tokens = 0  # unknown

    @property
    def answer_tokens(self) -> int:
        """Number of tokens so far."""
        return len(self.tokens)

    @property
    def text(self) -> str:
        """The text that was written."""
        return self._text.text

    @property
    def time_to_first_token_s(self) -> float | None:
        """Seconds from the start to the first token; None if there is none."""
        return self._times[0] - self._started_s if self._times else None

    @property
    def tokens_per_s(self) -> float | None:
        """Rate after the first token; None if there is no second."""
        if len(self.tokens) < 2 or self._times[-1] <= self._times[0]:
            return None
        return (len(self.tokens) - 1) / (self._times[-1] - self._times[0])

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompt first, then the tokens: one at a time, or several after right guesses.

        Args:
            value: (tokens,) or (1, tokens) int64.
        """
        if self._saw_prompt:
            new = value.flatten().tolist()
            self._times.append(time.perf_counter())
            self.tokens += new
            self._pass_on(self._text.put(new))
        self._saw_prompt = True

    def end(self) -> None:
        """Writes the text that was held back."""
        self._pass_on(self._text.end())

    def _pass_on(self, text: str) -> None:
        if text:
            self._write(text)
