"""Renders a streamed Markdown answer in a terminal.

Blocks are rendered once they are complete. A line below shows the words of the open block.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.markdown import Markdown
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text

from npu_llm.cli.terminal import without_controls

__all__ = ["Block", "MarkdownBlocks", "MarkdownWriter"]

_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})([^`]*)$")
_ITEM = re.compile(r"( {0,3})([-*+]|\d{1,9}[.)])(?: |$)")
_RULE = re.compile(r" {0,3}([-*_])( *\1){2,} *$")
_HEADING = re.compile(r" {0,3}#{1,6}(?: |$)")
_INDENTED = re.compile(r" {2,}|\t")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of an answer that is rendered as a whole.

    Attributes:
        text: its Markdown, or a line of code.
        follows: whether it continues the block above without an empty line: a list item, or a line
            of code.
        code: for a line of code, the code of its fence up to this line; otherwise None.
        language: the language of the fence.
    """

    text: str
    follows: bool = False
    code: str | None = None
    language: str = ""


class MarkdownBlocks:
    """The blocks of one text; each list item and each line of code is a block.

    Attributes:
        open: the text after the last complete block.
    """

    def __init__(self) -> None:
        self.open = ""
        self._lines: list[str] = []  # complete lines of the open block
        self._is_item = False
        self._follows = False
        self._fence = ""  # end of the open code block
        self._inner_fence = ""  # end of open code in a list item
        self._language = ""
        self._code = ""
        self._indent = 0

    def feed(self, text: str) -> list[Block]:
        """Adds the next piece, which may end anywhere; returns the completed blocks."""
        *lines, self.open = (self.open + text).split("\n")
        return [block for line in lines for block in self._take(line)]

    def end(self) -> list[Block]:
        """Returns the remaining blocks; unclosed code or emphasis ends with the text."""
        last, self.open = self.open, ""
        blocks = self._take(last) if last else []
        return blocks + self._close()

    @property
    def preview(self) -> str:
        """The latest words of the open block."""
        return self.open or (self._lines[-1] if self._lines else "")

    def _take(self, line: str) -> list[Block]:
        if self._fence:
            return self._take_code(line)
        if self._inner_fence:
            self._lines.append(line)
            if line.strip().startswith(self._inner_fence) and not line.strip(" `~"):
                self._inner_fence = ""
            return []
        if not line.strip():
            if self._is_item:  # its next paragraph may follow
                self._lines.append(line)
                return []
            return self._close()
        is_inner = self._is_item and _INDENTED.match(line) is not None
        fence = _FENCE.match(line.lstrip() if is_inner else line)
        if is_inner:
            self._inner_fence = fence[2] if fence else ""
            self._lines.append(line)
            return []
        if fence is not None:
            blocks = self._close()
            self._indent, self._fence, self._language = len(fence[1]), fence[2], fence[3].strip()
            self._code = ""
            return blocks
        return self._take_text(line)

    def _take_text(self, line: str) -> list[Block]:
        is_item = _ITEM.match(line) is not None and not _RULE.match(line)
        had_gap = self._is_item and bool(self._lines) and not self._lines[-1].strip()
        is_heading = _HEADING.match(line) is not None
        ends = is_item or had_gap or is_heading
        was_item = self._is_item
        blocks = self._close() if ends else []
        if ends:
            self._is_item = is_item
            self._follows = is_item and was_item and not had_gap
        self._lines.append(line)
        if is_heading:
            blocks += self._close()
        return blocks

    def _take_code(self, line: str) -> list[Block]:
        is_end = line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0])
        if is_end:
            self._fence = ""
            return []
        line = line[min(self._indent, len(line) - len(line.lstrip(" "))) :]
        is_first = not self._code
        self._code += f"{line}\n"
        return [Block(text=line, follows=not is_first, code=self._code, language=self._language)]

    def _close(self) -> list[Block]:
        text = "\n".join(self._lines).rstrip()
        block = Block(text=text, follows=self._follows)
        self._lines, self._is_item, self._follows, self._inner_fence = [], False, False, ""
        return [block] if text else []


_ERASE, _DIM, _USUAL = "\r\x1b[K", "\x1b[2m", "\x1b[0m"
_CODE_INDENT = "  "
_THEME = "ansi_dark"  # uses the terminal's colors and background


class MarkdownWriter:
    """Writes one answer: complete blocks, and a line below with the words of the open one.

    Only that line is overwritten.
    """

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, markup=False)
        self._blocks = MarkdownBlocks()
        self._has_begun = False
        self._preview = ""

    def write(self, text: str) -> None:
        """Writes the next piece of the answer, which may end anywhere."""
        self._render(self._blocks.feed(without_controls(text)))
        # Terminals differ in the last column.
        self._show(_last_line(self._blocks.preview, self._console.width - 1))
        sys.stdout.flush()

    def end(self) -> None:
        """Renders the open block."""
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
                # Not wrapped, so that it can be copied.
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
    """Returns the lines of a block, without rich's empty lines around it."""
    markdown = Markdown(text, code_theme=_THEME)
    for token in markdown.parsed:  # rich drops HTML; show it as text
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
    """Returns the last line of a text wrapped at words, or within words longer than a line."""
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
    """Returns the line with its syntax colors, which depend on the code above."""
    assert block.code is not None
    syntax = Syntax("", block.language or "text", theme=_THEME, background_color="default")
    lines = syntax.highlight(block.code).split("\n", allow_blank=True)
    line = lines[block.code.count("\n") - 1]
    line.rstrip()
    return Text(_CODE_INDENT).append_text(line)
