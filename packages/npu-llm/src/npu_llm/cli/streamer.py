"""Writes an answer to standard output as its tokens come, and notes when they came.

The table that shows the times is made in npu_llm.cli.session.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

__all__ = ["AnswerStreamer"]

_INCOMPLETE = "�"  # what a decoder gives for bytes that are not a whole character yet


class AnswerStreamer(BaseStreamer):  # type: ignore[misc]
    """A streamer of transformers for one answer.

    Attributes:
        text: what was written so far.
        tokens: ids of the answer so far.
        started_s, first_s, last_s: when the streamer was made, when the first and when the latest
            token came, by time.perf_counter; 0.0 while there is none.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.text = ""
        self.tokens: list[int] = []
        self.started_s = time.perf_counter()
        self.first_s = 0.0
        self.last_s = 0.0
        self._tokenizer = tokenizer
        self._saw_prompt = False
        self._settled = 0  # tokens whose text is in _settled_text
        self._settled_text = ""

    @property
    def time_to_first_token_s(self) -> float | None:
        """Seconds from the start to the first token; None when there is none."""
        return self.first_s - self.started_s if self.tokens else None

    @property
    def tokens_per_s(self) -> float | None:
        """Rate after the first token; None when there is no second."""
        if len(self.tokens) < 2 or self.last_s <= self.first_s:
            return None
        return (len(self.tokens) - 1) / (self.last_s - self.first_s)

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompt first, then token by token.

        Args:
            value: (tokens,) or (1, tokens) int64.
        """
        if not self._saw_prompt:
            self._saw_prompt = True
            return
        self.last_s = time.perf_counter()
        self.first_s = self.first_s or self.last_s
        self.tokens += value.flatten().tolist()
        text = self._decoded()
        if not text.endswith(_INCOMPLETE):
            self._write(text)

    def end(self) -> None:
        """Writes what was held back."""
        self._write(self._decoded())

    def _decoded(self) -> str:
        """The text of all tokens; of those long past, from memory.

        A token's text may depend on its neighbours, so that decoding goes by lines: a line that has
        ended does not change any more.
        """
        tail: str = self._tokenizer.decode(
            self.tokens[self._settled :],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        text = self._settled_text + tail
        if tail.endswith("\n"):
            self._settled, self._settled_text = len(self.tokens), text
        return text

    def _write(self, text: str) -> None:
        fresh = text[len(self.text) :]
        if fresh:
            sys.stdout.write(fresh)
            sys.stdout.flush()
            self.text = text
