"""Writes an answer to standard output as its tokens come."""

from __future__ import annotations

import sys
from typing import Any

from npu_llm.chat.answer_streamer import AnswerText

__all__ = ["AnswerStreamer"]


class AnswerStreamer(AnswerText):
    """A streamer of transformers for one answer; see AnswerText for what it records."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, _write)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
