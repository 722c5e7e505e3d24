"""AnswerText: incremental access to an answer's text while it is generated."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

__all__ = ["AnswerText", "MalformedCallError", "Steps"]

_Result = TypeVar("_Result")
# A parser step, which yields when it needs more text.
Steps = Generator[None, None, _Result]

_BRACKET = re.compile(r'[][{}"]')
_QUOTE = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,:\]}]")
_MOST_UNUSED = 1 << 16


class MalformedCallError(Exception):
    """Text that begins like a tool call but is malformed."""


class AnswerText:
    """The text of an answer so far, and the parser's position in it.

    Methods that return Steps yield to wait for text.

    Attributes:
        text: the text; text far before the position may have been dropped.
        at: the position.
        has_ended: whether the text is complete.
        is_kept: whether text before the position must be retained.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.has_ended = False
        self.is_kept = False
        self._dropped = 0

    @property
    def place(self) -> int:
        """The position, counted from the beginning of the answer."""
        return self._dropped + self.at

    def wait(self) -> Steps[bool]:
        """Waits for more text; returns False at the end."""
        length = len(self.text)
        while len(self.text) == length:
            if self.has_ended:
                return False
            yield
        return True

    def peek(self) -> Steps[str]:
        """Returns the next character; "" at the end."""
        while self.at == len(self.text):
            if not (yield from self.wait()):
                return ""
        return self.text[self.at]

    def skip_space(self) -> Steps[None]:
        """Skips white space."""
        while (char := (yield from self.peek())) and char.isspace():
            self.at += 1

    def take(self, marks: Sequence[str]) -> Steps[str]:
        """Consumes one of some marks if it comes next; returns it, or "" otherwise."""
        while True:
            found = [mark for mark in marks if mark and self.text.startswith(mark, self.at)]
            rest = self.text[self.at :]
            may_come = any(len(mark) > len(rest) and mark.startswith(rest) for mark in marks)
            if may_come and (yield from self.wait()):
                continue
            mark = max(found, key=len, default="")
            self.at += len(mark)
            return mark

    def expect(self, mark: str) -> Steps[None]:
        """Consumes a mark; raises MalformedCallError for other text."""
        if mark and not (yield from self.take((mark,))):
            raise MalformedCallError(mark)

    def until(self, marks: Sequence[str], passed: Callable[[str], object]) -> Steps[str]:
        """Passes text on up to the first mark, and consumes the mark.

        Args:
            marks: strings.
            passed: called with each piece of text before the mark.

        Returns:
            The mark; "" at the end of the text.
        """
        while True:
            if self.at > _MOST_UNUSED and not self.is_kept:
                self._dropped = self.place
                self.text, self.at = self.text[self.at :], 0
            places = [
                (place, -len(mark), mark)
                for mark in marks
                if (place := self.text.find(mark, self.at)) >= 0
            ]
            if places:
                place, _, mark = min(places)
                passed(self.text[self.at : place])
                self.at = place + len(mark)
                return mark
            rest = self.text[self.at :]
            certain = len(rest) - max((_overlap(rest, mark) for mark in marks), default=0)
            passed(rest[:certain])
            self.at += certain
            if not (yield from self.wait()):
                passed(self.text[self.at :])
                self.at = len(self.text)
                return ""

    def word(self, marks: Sequence[str], *, most: int = 256) -> Steps[tuple[str, str]]:
        """Consumes a short text up to one of some marks, and the mark; returns both.

        Raises:
            MalformedCallError: if the text is too long, or no mark follows.
        """
        start = self.at
        longest = most + max(map(len, marks))
        while True:
            places = [
                (place, -len(mark), mark)
                for mark in marks
                if (place := self.text.find(mark, start, start + longest)) >= 0
            ]
            if places:
                place, _, mark = min(places)
                self.at = place + len(mark)
                return self.text[start:place], mark
            if len(self.text) - start >= longest or not (yield from self.wait()):
                raise MalformedCallError(self.text[start : start + most])

    def json_value(self, passed: Callable[[str], object]) -> Steps[None]:
        """Passes a JSON value on and consumes it.

        Brackets and strings determine its end; the rest is not checked.

        Raises:
            MalformedCallError: if it is incomplete.
        """
        first = yield from self.peek()
        if first not in ("{", "[", '"'):
            while not (end := _SCALAR_END.search(self.text, self.at)):
                if not (yield from self.wait()):
                    break
            place = end.start() if end else len(self.text)
            if place == self.at:
                raise MalformedCallError(first)
            passed(self.text[self.at : place])
            self.at = place
            return
        depth, is_string, place = 0, False, self.at
        while True:
            found = (_QUOTE if is_string else _BRACKET).search(self.text, place)
            if found is None or (found[0] == "\\" and found.end() == len(self.text)):
                place = len(self.text) if found is None else found.start()
                passed(self.text[self.at : place])
                self.at = place
                if not (yield from self.wait()):
                    raise MalformedCallError("the end")
                continue
            place = found.end()
            if found[0] == "\\":
                place += 1
            elif found[0] == '"':
                is_string = not is_string
            else:
                depth += 1 if found[0] in "{[" else -1
            if depth == 0 and not is_string:
                passed(self.text[self.at : place])
                self.at = place
                return

    def python_arguments(self) -> Steps[str]:
        """Consumes and returns the text up to the bracket that closes the current one.

        Raises:
            MalformedCallError: if that bracket is missing.
        """
        start, depth, quote = self.at, 1, ""
        while True:
            if self.at == len(self.text) and not (yield from self.wait()):
                raise MalformedCallError(self.text[start : start + 100])
            char = self.text[self.at]
            self.at += 1
            if quote and char == "\\":
                if self.at == len(self.text):
                    yield from self.wait()
                self.at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char in "([{":
                depth += 1
            elif char in ")]}":
                depth -= 1
                if not depth:
                    return self.text[start : self.at - 1]


def _overlap(text: str, mark: str) -> int:
    """Returns the length of the longest suffix of a text that is a prefix of a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)
