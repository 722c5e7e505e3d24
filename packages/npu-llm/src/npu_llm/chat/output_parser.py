"""OutputParser: splits streamed output into reasoning, text and tool calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from npu_llm.chat.answer_text import AnswerText, MalformedCallError, Steps
from npu_llm.chat.call_arguments import Tools
from npu_llm.chat.call_reader import CallReader, recipient_of
from npu_llm.chat.call_styles import CallStyle
from npu_llm.chat.thinking_styles import ThinkingStyle
from npu_llm.chat.tool_calls import Call

__all__ = ["Delta", "OutputParser", "ParsedOutput"]


@dataclass(frozen=True)
class Delta:
    """A piece of an answer's output.

    Attributes:
        kind: "reasoning" and "content" for text, "call" for the start of a call, and "arguments"
            for a piece of a call's arguments. The pieces of a call's arguments form a JSON object.
        text: the piece; the function's name for "call".
        index: index of the call; 0 for text.
        id: identifier of the call; "" for other kinds.
    """

    kind: Literal["reasoning", "content", "call", "arguments"]
    text: str
    index: int = 0
    id: str = ""


@dataclass
class ParsedOutput:
    """A parsed answer, complete so far.

    Attributes:
        reasoning: its reasoning text.
        content: its text without reasoning and calls.
        calls: its calls.
    """

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        """Adds a piece."""
        if delta.kind == "reasoning":
            self.reasoning += delta.text
        elif delta.kind == "content":
            self.content += delta.text
        elif delta.kind == "call":
            self.calls.append(Call(delta.id, delta.text, ""))
        else:
            call = self.calls[-1]
            self.calls[-1] = replace(call, arguments=call.arguments + delta.text)


class OutputParser:
    """A parser for one answer.

    Text that begins like a call, but does not call a known function, is content. When streaming, a
    call starts once its function is known. If its arguments turn out to be malformed, the pieces
    passed on remain, and later text is content.

    Attributes:
        parsed: the answer so far.
        thoughts: start and end of each part of the reasoning in its text.
    """

    def __init__(
        self,
        thinking: ThinkingStyle | None,
        calls: CallStyle | None,
        functions: Sequence[Mapping[str, Any]] = (),
        *,
        is_thinking: bool = False,
        is_parallel: bool = True,
        is_stream: bool = True,
    ) -> None:
        """Starts parsing an answer.

        Args:
            thinking: the style of the model's reasoning; None if it has none.
            calls: the style of its calls; None if it has none.
            functions: the available functions, with a name and optionally `parameters`.
            is_thinking: whether the prompt has opened the reasoning.
            is_parallel: whether several calls are allowed; if not, all but the first are dropped.
            is_stream: whether calls are passed on before they are complete.
        """
        self.parsed = ParsedOutput()
        self.thoughts: list[tuple[int, float]] = []
        self._thinking = thinking
        self._style = calls
        self._source = AnswerText()
        self._calls: CallReader | None = None
        if calls is not None:
            self._calls = CallReader(
                self._source, calls, Tools(functions), self._call_begins, self._arguments_come,
                is_parallel=is_parallel, is_stream=is_stream,
            )  # fmt: skip
        self._reads_calls = bool(functions)
        self._out: list[Delta] = []
        self._space = ""  # at the end of the content; passed on if text follows
        self._is_after_mark = False  # drops white space after reasoning or a call
        self._thought_space: str | None = None  # None before the first word
        channels = calls is not None and calls.kind == "channels"
        self._steps = (self._messages if channels else self._answer)(is_thinking)

    def take(self, piece: str) -> list[Delta]:
        """Parses the next piece of the answer; returns the completed pieces."""
        self._source.text += piece
        return self._run()

    def end(self) -> list[Delta]:
        """Returns the remaining pieces at the end of the answer."""
        self._source.has_ended = True
        return self._run()

    def _run(self) -> list[Delta]:
        next(self._steps, None)
        found: list[Delta] = []
        for delta in self._out:
            last = found[-1] if found else None
            if last is not None and (last.kind, last.index) == (delta.kind, delta.index):
                found[-1] = replace(last, text=last.text + delta.text)
            else:
                found.append(delta)
        self._out = []
        for delta in found:
            self.parsed.add(delta)
        return found

    # Text

    def _say(self, text: str) -> None:
        """Passes content on, except white space at its end and after marks."""
        text = self._space + text
        if self._is_after_mark:
            text = text.lstrip()
        end = len(text.rstrip())
        self._space = text[end:]
        if end:
            self._is_after_mark = False
            self._out.append(Delta("content", text[:end]))

    def _think(self, text: str) -> None:
        """Passes reasoning on, except white space around it."""
        text = text.lstrip() if self._thought_space is None else self._thought_space + text
        end = len(text.rstrip())
        if end:
            self._out.append(Delta("reasoning", text[:end]))
        if end or self._thought_space is not None:
            self._thought_space = text[end:]

    def _pass_mark(self) -> None:
        self._space, self._is_after_mark = "", True

    def _begin_thought(self) -> None:
        self.thoughts.append((self._source.place, math.inf))

    def _end_thought(self, mark: str) -> None:
        self.thoughts[-1] = (self.thoughts[-1][0], self._source.place - len(mark))
        if self._thought_space is not None:
            self._thought_space = "\n"  # before another part of the reasoning
        self._pass_mark()

    def _call_begins(self, name: str, index: int, identifier: str) -> None:
        self._pass_mark()
        self._out.append(Delta("call", name, index, identifier))

    def _arguments_come(self, text: str, index: int) -> None:
        self._out.append(Delta("arguments", text, index))

    def _flush(self) -> None:
        if self._space and not self._is_after_mark:
            self._out.append(Delta("content", self._space))

    # Answers with marks around reasoning and calls

    def _answer(self, is_thinking: bool) -> Steps[None]:
        thinking, openers = self._thinking, self._openers()
        marks = (*openers, *(thinking.marks if thinking else ()))
        is_start = True
        if is_thinking and thinking is not None:
            yield from self._source.skip_space()
            yield from self._source.take((thinking.start,))  # some models open the reasoning again
            yield from self._reasoning()
        while True:
            if is_start and self._reads_calls:
                yield from self._bare_calls()
            mark = yield from self._source.until(marks, self._say)
            is_start = False
            if not mark:
                break
            if mark in openers:
                yield from self._marked_calls(mark)
            elif thinking is not None and mark == thinking.start:
                yield from self._reasoning()
                is_start = True
            elif thinking is not None and mark in thinking.frames:
                self._pass_mark()
        self._flush()

    def _openers(self) -> tuple[str, ...]:
        """Returns the marks that begin calls."""
        style = self._style
        if style is None or not self._reads_calls:
            return ()
        return (*style.openers, style.name_mark) if style.has_name_tag else style.openers

    def _reasoning(self) -> Steps[None]:
        """Passes reasoning on up to its end mark."""
        style, thinking = self._style, self._thinking
        assert thinking is not None, "its mark was found"
        others = self._openers() if style is not None and style.ends_thinking else ()
        self._begin_thought()
        mark = yield from self._source.until((thinking.end, *others), self._think)
        self._end_thought(mark)
        if mark in others:
            self._source.at -= len(mark)

    def _marked_calls(self, mark: str) -> Steps[None]:
        """Parses the calls after a mark; passes the mark on as content if none follow."""
        source, reader = self._source, self._calls
        assert reader is not None, "there is a style"
        start = source.at - len(mark)
        source.is_kept = True
        try:
            yield from reader.calls(mark)
            self._pass_mark()
        except MalformedCallError:
            if reader.has_begun:
                self._pass_mark()
            elif reader.last_end is not None:
                source.at = reader.last_end
            else:
                source.at = len(source.text) if source.has_ended else start + len(mark)
                self._say(source.text[start : source.at])
        source.is_kept = False

    def _bare_calls(self) -> Steps[None]:
        """Parses calls without a mark at the start of an answer, if there are any."""
        source, reader = self._source, self._calls
        if reader is None or self._style is None or not self._style.is_bare:
            return
        start = source.at
        source.is_kept = True
        yield from source.skip_space()
        if (yield from source.peek()) in ("{", "["):
            try:
                yield from reader.calls("")
                self._pass_mark()
                start = source.at
            except MalformedCallError:
                if reader.has_begun:
                    start = source.at
                elif reader.last_end is not None:
                    start = reader.last_end
        source.at = start
        source.is_kept = False

    # Answers in messages with headers

    def _messages(self, is_thinking: bool) -> Steps[None]:
        style, source = self._style, self._source
        assert style is not None, "it has channels"
        is_header = style.begins_in_header
        if is_thinking:
            yield from self._body(style, self._think)
        elif not is_header:  # a recipient may precede the first channel
            mark = yield from source.take((" to=", "to="))
            source.at -= len(mark)
            is_header = bool(mark)
        mark = ""
        while True:
            if is_header:
                yield from self._message(style, mark)
            mark = yield from source.until((*style.starts, *style.ends), self._say)
            if not mark:
                break
            is_header = mark in style.starts
        self._flush()

    def _message(self, style: CallStyle, mark: str) -> Steps[None]:
        """Parses the header of a message, and passes its body on."""
        source = self._source
        start = source.at - len(mark)
        source.is_kept = True
        try:
            header, _ = yield from source.word((style.separator,))
        except MalformedCallError:
            is_cut = source.has_ended and not style.begins_in_header
            source.at = len(source.text) if is_cut else start + len(mark)
            self._say("" if is_cut else mark)
            source.is_kept = False
            return
        body = source.at
        channel, recipient = recipient_of(style, header)
        if recipient and self._reads_calls:
            recipient = "" if (yield from self._call_message(recipient, body)) else recipient
        if recipient and style.begins_in_header:
            self._say(source.text[start:body])  # not a header
        source.is_kept = False
        yield from self._body(style, self._think if channel == "reasoning" else self._say)

    def _body(self, style: CallStyle, sink: Callable[[str], None]) -> Steps[None]:
        """Passes the body of a message on."""
        if sink == self._think:
            self._begin_thought()
        end = yield from self._source.until((*style.starts, *style.ends), sink)
        if sink == self._think:
            self._end_thought(end)
        self._source.at -= len(end)

    def _call_message(self, name: str, body: int) -> Steps[bool]:
        """Parses a call in the body of a message; returns whether there is one."""
        source, reader = self._source, self._calls
        assert reader is not None, "there is a style"
        try:
            yield from reader.message(name)
        except MalformedCallError:
            if not reader.has_begun:
                source.at = body
                return False
        self._pass_mark()
        return True
