"""Renders the Markdown of an answer in a terminal, block by block as blocks complete."""

from __future__ import annotations

import re
import sys

from rich.cells import cell_len
from rich.console import Console
from rich.markdown import Markdown
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text

from npu_llm.cli.answer_text.markdown_blocks import Block, MarkdownBlocks
from npu_llm.cli.answer_text.word_wrap import without_controls

__all__ = ["MarkdownWriter"]

_ERASE, _DIM, _USUAL = "\r\x1b[K", "\x1b[2m", "\x1b[0m"
_CODE_INDENT = "  "
_THEME = "ansi_dark"  # the terminal's own colours, on its own ground


class MarkdownWriter:
    """Writes one answer: complete blocks above, and the words of the open one on a line below.

    That line alone is written over. What has scrolled up is never touched.
    """

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, markup=False)
        self._blocks = MarkdownBlocks()
        self._has_begun = False
        self._preview = ""

    def write(self, text: str) -> None:
        """Takes the next piece of the answer, which may end anywhere."""
        self._render(self._blocks.feed(without_controls(text)))
        # The last column is where terminals differ.
        self._show(_last_line(self._blocks.preview, self._console.width - 1))
        sys.stdout.flush()

    def end(self) -> None:
        """Shows what is still open, as far as it goes."""
        self._render(self._blocks.end())
        self._show("")
        sys.stdout.flush()

    def _render(self, blocks: list[Block]) -> None:
        for block in blocks:
            self._show("")
            if self._has_begun and not block.follows:
                self._console.print()
            self._has_begun = True
            if block.code is None:
                self._console.print(_rendered(block.text, self._console), end="")
            else:
                # Left whole for who copies it.
                self._console.print(_code_line(block), soft_wrap=True)

    def _show(self, words: str) -> None:
        added = words.removeprefix(self._preview)
        if not words.startswith(self._preview):
            sys.stdout.write(_ERASE)
            added = words
        if added:
            sys.stdout.write(f"{_DIM}{added}{_USUAL}")
        self._preview = words


def _rendered(text: str, console: Console) -> Segments:
    """Returns the lines of a block, without the empty ones that rich puts around some."""
    markdown = Markdown(text, code_theme=_THEME)
    for token in markdown.parsed:  # rich drops HTML: here it is what was written
        if token.type == "html_block":
            token.type = "code_block"
        for inner in token.children or ():
            if inner.type == "html_inline":
                inner.type = "text"
    lines = console.render_lines(markdown, pad=False)
    while lines and _is_empty(lines[0]):
        del lines[0]
    while lines and _is_empty(lines[-1]):
        del lines[-1]
    return Segments([part for line in lines for part in (*line, Segment.line())])


def _is_empty(line: list[Segment]) -> bool:
    return not "".join(part.text for part in line).strip()


def _last_line(text: str, room: int) -> str:
    """Returns the last line of a text that is broken between words, or within longer ones."""
    line = ""
    for word in re.findall(r" *[^ ]+ *", "".join(s if s.isprintable() else " " for s in text)):
        if line and cell_len(line) + cell_len(word.rstrip()) > room:
            line = ""
            word = word.lstrip()
        line += word
    while cell_len(line) > room:
        line = line[room // 2 :]
    return line


def _code_line(block: Block) -> Text:
    """Returns the line with the colours that the code above it gives it."""
    assert block.code is not None
    syntax = Syntax("", block.language or "text", theme=_THEME, background_color="default")
    lines = syntax.highlight(block.code).split("\n", allow_blank=True)
    line = lines[block.code.count("\n") - 1]
    line.rstrip()
    return Text(_CODE_INDENT).append_text(line)
