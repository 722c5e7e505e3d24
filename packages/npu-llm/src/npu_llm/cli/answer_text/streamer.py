"""Writes an answer to standard output as its tokens come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npu_llm.chat.answer_streamer import AnswerText
from npu_llm.cli.answer_text.word_wrap import text_writer

__all__ = ["AnswerStreamer"]


class AnswerStreamer(AnswerText):
    """A streamer of transformers for one answer; see AnswerText for what it records.

    Args:
        tokenizer: the model's.
        write: takes the text; text_writer() by default.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], object] | None = None) -> None:
        super().__init__(tokenizer, write or text_writer())
