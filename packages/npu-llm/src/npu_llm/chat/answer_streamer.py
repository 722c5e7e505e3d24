"""Streamers of transformers that follow one answer: its tokens and times, and its text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["AnswerRecorder", "AnswerText"]

_MOST_OPEN = 16  # tokens that are decoded again with each that comes
_STILL_OPEN = 4  # of which so many stay open
_INCOMPLETE = "�"  # what a decoder returns for bytes that are not yet a whole character


class AnswerRecorder:
    """Records the tokens of an answer and when they came, and passes them on.

    Attributes:
        tokens: ids of the answer so far.
        started_s, first_s, last_s: when the streamer was made, and when the first and the latest
            token came, by time.perf_counter; 0.0 while there is none.
    """

    def __init__(self, listener: Any | None = None) -> None:
        self.tokens: list[int] = []
        self.started_s = time.perf_counter()
        self.first_s = 0.0
        self.last_s = 0.0
        self._listener = listener
        self._saw_prompt = False

    @property
    def time_to_first_token_s(self) -> float | None:
        """Seconds from the start to the first token; None if there is none."""
        return self.first_s - self.started_s if self.tokens else None

    @property
    def tokens_per_s(self) -> float | None:
        """Rate after the first token; None if there is no second."""
        if len(self.tokens) < 2 or self.last_s <= self.first_s:
            return None
        return (len(self.tokens) - 1) / (self.last_s - self.first_s)

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompt first, then the tokens: one at a time, or several after right guesses.

        Args:
            value: (tokens,) or (1, tokens) int64.
        """
        if self._saw_prompt:
            self.take(value.flatten().tolist())
        self._saw_prompt = True
        if self._listener is not None:
            self._listener.put(value)

    def take(self, tokens: list[int]) -> None:
        """Takes tokens of the answer."""
        self.last_s = time.perf_counter()
        self.first_s = self.first_s or self.last_s
        self.tokens += tokens

    def end(self) -> None:
        """Tells the listener that the answer has ended."""
        if self._listener is not None:
            self._listener.end()


class AnswerText(AnswerRecorder):
    """Decodes an answer as it comes, and passes on each piece that is complete.

    Attributes:
        text: what was passed on so far.
    """

    def __init__(self, tokenizer: Any, on_text: Callable[[str], object]) -> None:
        super().__init__()
        self.text = ""
        self._tokenizer = tokenizer
        self._on_text = on_text
        self._settled = 0  # tokens whose text is in _settled_text
        self._settled_text = ""

    def take(self, tokens: list[int]) -> None:
        """Takes tokens of the answer, and passes on the text that they complete."""
        super().take(tokens)
        text = self._decoded()
        if not text.endswith(_INCOMPLETE):
            self._hand_on(text)

    def end(self) -> None:
        """Passes on what was held back."""
        self._hand_on(self._decoded())

    def _decoded(self) -> str:
        """Returns the text of all tokens; all but the latest are not decoded again.

        A token's text may depend on its neighbours: some decoders drop a space at the start, and
        bytes of several tokens make one character. So tokens are settled only where the text of
        the latest few alone is the end of the text of all.
        """
        open_tokens = self.tokens[self._settled :]
        text = self._settled_text + self._decode(open_tokens)
        if len(open_tokens) >= _MOST_OPEN and not text.endswith(_INCOMPLETE):
            last = self._decode(open_tokens[-_STILL_OPEN:])
            if last and text.endswith(last):
                self._settled = len(self.tokens) - _STILL_OPEN
                self._settled_text = text.removesuffix(last)
        return text

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _hand_on(self, text: str) -> None:
        fresh = text[len(self.text) :]
        if fresh:
            self._on_text(fresh)
            self.text = text
