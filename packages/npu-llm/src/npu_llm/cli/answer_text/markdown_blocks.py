"""Cuts Markdown into blocks as its text arrives: a block that has ended is shown, and stays."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Block", "MarkdownBlocks"]

_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})([^`]*)$")
_ITEM = re.compile(r"( {0,3})([-*+]|\d{1,9}[.)])(?: |$)")
_RULE = re.compile(r" {0,3}([-*_])( *\1){2,} *$")
_HEADING = re.compile(r" {0,3}#{1,6}(?: |$)")
_INDENTED = re.compile(r" {2,}|\t")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of an answer that is rendered at once.

    Attributes:
        text: its Markdown; of a line of code, the code alone.
        follows: whether it continues what stands above it, without an empty line between: an item
            of a list, or a line of code.
        code: None, or all code of its fence so far, whose last line it is.
        language: what stands behind the fence.
    """

    text: str
    follows: bool = False
    code: str | None = None
    language: str = ""


class MarkdownBlocks:
    """The blocks of one text. Items of a list and lines of code are blocks of their own.

    Attributes:
        open: the text that is in no block yet.
    """

    def __init__(self) -> None:
        self.open = ""
        self._lines: list[str] = []  # whole lines of the block that has begun
        self._is_item = False
        self._follows = False
        self._fence = ""  # what ends the code that has begun
        self._inner_fence = ""  # the same, of code within an item
        self._language = ""
        self._code = ""
        self._indent = 0

    def feed(self, text: str) -> list[Block]:
        """Takes the next piece, which may end anywhere; returns the blocks that it completes."""
        *lines, self.open = (self.open + text).split("\n")
        return [block for line in lines for block in self._take(line)]

    def end(self) -> list[Block]:
        """Returns what is left; code or emphasis that nobody closed ends with the text."""
        last, self.open = self.open, ""
        blocks = self._take(last) if last else []
        return blocks + self._close()

    @property
    def preview(self) -> str:
        """The latest words that no block has yet."""
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
