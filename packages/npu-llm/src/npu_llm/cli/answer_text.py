"""Writes answers to standard output as they come: in a terminal, words are not broken at its edge.

npu_llm.cli.markdown renders those in Markdown.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from npu_command.output import OUTPUT
from npu_llm.tokenizer.detokenizer import Detokenizer

if TYPE_CHECKING:
    import torch

__all__ = [
    "AnswerStreamer",
    "WordWrap",
    "can_render",
    "text_writer",
    "without_controls",
    "writer_beside_json",
]

_PIECES = re.compile(r"\n| |[^\n ]+")
# All but newlines and tabs.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def text_writer() -> Callable[[str], object]:
    """Returns what writes pieces of an answer to standard output.

    In a terminal no word is broken at the edge, and nothing in an answer steers the terminal; into
    a file or a pipe goes the text as it is.
    """
    if not sys.stdout.isatty():
        return _write
    write = _write if os.environ.get("TERM") == "dumb" else WordWrap(_write, _columns).write
    return lambda text: write(without_controls(text))


def without_controls(text: str) -> str:
    """Returns a text without what would steer a terminal: escapes, bells, carriage returns."""
    return _CONTROLS.sub("", text)


def writer_beside_json(place: Path | None) -> Callable[[str], object]:
    """Returns text_writer(), or what writes nothing where JSON stands alone on standard output.

    Args:
        place: what --json says.
    """
    return (lambda _: None) if place == OUTPUT else text_writer()


def can_render() -> bool:
    """Whether standard output is a terminal that shows styles and the signs of lists and tables."""
    encoding = codecs.lookup(sys.stdout.encoding or "ascii").name
    return (
        sys.stdout.isatty()
        and os.environ.get("TERM", "dumb") != "dumb"
        and not os.environ.get("NO_COLOR")
        and encoding == "utf-8"
    )


class WordWrap:
    """Breaks lines between words as pieces of words arrive; each is shown at once.

    Where a word grows beyond the edge, its beginning is taken back and written on the next line. A
    word that is longer than a line, or a script without spaces, is left to the terminal.

    Args:
        write: takes text with control sequences.
        columns: returns how many characters a line has now.
    """

    def __init__(self, write: Callable[[str], object], columns: Callable[[], int]) -> None:
        self._write = write
        self._columns = columns
        self._column = 0
        self._word = ""

    def write(self, text: str) -> None:
        """Writes the next piece of the text, which may end within a word."""
        edge = self._columns() - 1  # the last column is where terminals differ
        self._write("".join(self._placed(piece, edge) for piece in _PIECES.findall(text)))

    def _placed(self, piece: str, edge: int) -> str:
        if piece in ("\n", " "):
            self._word = ""
            ends = piece == "\n" or self._column >= edge
            self._column = 0 if ends else self._column + 1
            return "\n" if ends else " "
        width, begun = cell_len(piece), cell_len(self._word)
        self._word += piece
        if self._column + width <= edge or self._column == begun or begun + width > edge:
            self._column += width
            return piece
        self._column = begun + width
        taken_back = f"\x1b[{begun}D\x1b[K" if begun else ""
        return f"{taken_back}\n{self._word}"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


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
