"""CallReader: parses tool calls of each style incrementally."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from npu_llm.chat.answer_text import AnswerText, MalformedCallError, Steps
from npu_llm.chat.call_arguments import Tools, from_braces, from_python, from_text, new_id
from npu_llm.chat.call_styles import CallStyle

__all__ = ["CallReader", "recipient_of"]

_NAME_KEYS = ("name", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_ID_KEYS = ("id", "tool_call_id", "call_id")
_WRAPPERS = ("function", "tool_call")
_OTHER_KEYS = ("type", "index")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_INDEX = re.compile(r":\d+$")
_PYTHON_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_TEXT_HINTS = ('string="true"', 'type="string"')


def recipient_of(style: CallStyle, header: str) -> tuple[str, str]:
    """Returns a header's recipient: "reasoning" or "content", and a function's name or ""."""
    if style.begins_in_header:
        name = header.rsplit(style.name_mark or style.separator, 1)[-1].strip()
        return "content", "" if name in ("all", "") else name
    found = _RECIPIENT.search(header)
    name = found[1].removeprefix(style.prefix) if found else ""
    return "reasoning" if not name and "analysis" in header else "content", name


class _Members:
    """The members of a JSON object that describe a call."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.id = ""
        self.arguments = "{}"


class CallReader:
    """Parses the calls of one answer.

    Attributes:
        has_begun: whether the current call was passed on but is incomplete.
        last_end: position after the last complete call of the latest group; None without one.
    """

    def __init__(
        self,
        source: AnswerText,
        style: CallStyle,
        tools: Tools,
        begin: Callable[[str, int, str], object],
        add: Callable[[str, int], object],
        *,
        is_parallel: bool,
        is_stream: bool,
    ) -> None:
        """Starts parsing an answer.

        Args:
            source: text of the answer.
            style: style of its calls.
            tools: the available functions.
            begin: called with the function's name, index and identifier of each call.
            add: called with each piece of a call's arguments, and the call's index.
            is_parallel: whether calls after the first are passed on.
            is_stream: whether calls are passed on before they are complete.
        """
        self.has_begun = False
        self.last_end: int | None = None
        self._source = source
        self._style = style
        self._tools = tools
        self._begin_call = begin
        self._add = add
        self._is_parallel = is_parallel
        self._is_stream = is_stream
        self._count = 0
        self._held: tuple[str, str, list[str]] | None = None

    def calls(self, mark: str) -> Steps[None]:
        """Parses a group of calls.

        Args:
            mark: the opener that was consumed; "" without one.

        Raises:
            MalformedCallError: if anything else is found.
        """
        style, source = self._style, self._source
        self._reset()
        if mark and mark == style.name_mark:
            source.at -= len(mark)
        while True:
            yield from source.skip_space()
            if not (yield from source.take(style.openers)):
                break
        while True:
            yield from self._group()
            self.last_end = source.at
            yield from source.skip_space()
            while (yield from source.take(style.closers)):
                self.last_end = source.at
                yield from source.skip_space()
            source.at = self.last_end
            if not style.has_name_tag:
                return
            yield from source.skip_space()
            found = yield from source.take((style.name_mark,))
            source.at -= len(found)
            if not found:
                return

    def message(self, name: str) -> Steps[None]:
        """Parses a call to the function in a message's header; raises as `calls` does."""
        self._reset()
        yield from self._source.skip_space()
        yield from self._object_arguments(name, "")

    def _reset(self) -> None:
        self.has_begun, self.last_end, self._held = False, None, None

    def _group(self) -> Steps[None]:
        kind = self._style.kind
        first = yield from self._source.peek()
        if kind == "tags":
            yield from self._tags()
        elif kind == "braces":
            yield from self._braces()
        elif kind == "python" and first != "[":
            yield from self._python(end="")
        elif first in ("[", "{"):
            yield from self._json()
        elif self._style.separator:
            yield from self._named()
        else:
            yield from self._python(end="")

    # Text that is passed on

    def _begin(self, name: str, identifier: str = "") -> None:
        """Begins a call; raises MalformedCallError for an unknown function."""
        if name not in self._tools:
            raise MalformedCallError(name)
        if self._style.ids == "random" or not identifier:
            identifier = new_id(self._style.ids, name, self._count)
        self._held = (name, identifier, [])
        if self._is_stream and self._is_wanted:
            self._begin_call(name, self._count, identifier)
            self.has_begun = True

    @property
    def _is_wanted(self) -> bool:
        return self._is_parallel or self._count == 0

    def _argue(self, text: str) -> None:
        assert self._held is not None, "a call has begun"
        self._held[2].append(text)
        if self.has_begun and text:
            self._add(text, self._count)

    def _finish(self) -> None:
        """Ends a call; raises MalformedCallError if its arguments are not a JSON object."""
        assert self._held is not None, "a call has begun"
        name, identifier, parts = self._held
        arguments = "".join(parts)
        if _parsed(arguments) is None:
            raise MalformedCallError(arguments[:100])
        if not self.has_begun and self._is_wanted:
            self._begin_call(name, self._count, identifier)
            self._add(arguments, self._count)
        self._count += 1
        self.has_begun, self._held = False, None
        self.last_end = self._source.at

    def _object_arguments(self, name: str, identifier: str) -> Steps[None]:
        """Parses the arguments of a call as a JSON object."""
        if (yield from self._source.peek()) != "{":
            raise MalformedCallError(name)
        self._begin(name, identifier)
        yield from self._source.json_value(self._argue)
        self._finish()

    # JSON that includes the name

    def _json(self) -> Steps[None]:
        source = self._source
        if (yield from source.take(("[",))):
            yield from source.skip_space()
            if _PYTHON_NAME.match((yield from source.peek())):
                yield from self._python(end="]")
                return
            while True:
                yield from self._json_call()
                yield from source.skip_space()
                if (yield from source.take(("]",))):
                    return
                yield from source.expect(",")
                yield from source.skip_space()
        while True:
            yield from self._json_call()
            place = source.at
            yield from source.skip_space()
            yield from source.take((";", ","))
            yield from source.skip_space()
            if (yield from source.peek()) != "{":
                source.at = place
                return

    def _json_call(self) -> Steps[None]:
        members = _Members()
        yield from self._object(members, is_inner=False)
        if self._held is not None:
            self._finish()
        else:
            name, text = members.name, members.arguments
            if name is None:
                raise MalformedCallError("no name")
            if text.startswith('"') and isinstance(inner := _value(text), str):
                text = inner or "{}"
            self._begin(name, members.id)
            self._argue("{}" if text == "null" else text)
            self._finish()
        self.last_end = self._source.at

    def _object(self, members: _Members, *, is_inner: bool) -> Steps[None]:
        source = self._source
        yield from source.expect("{")
        yield from source.skip_space()
        if (yield from source.take(("}",))):
            return
        while True:
            key = yield from self._string()
            yield from source.skip_space()
            yield from source.expect(":")
            yield from source.skip_space()
            yield from self._member(key, members, is_inner=is_inner)
            yield from source.skip_space()
            if (yield from source.take(("}",))):
                return
            yield from source.expect(",")
            yield from source.skip_space()

    def _member(self, key: str, members: _Members, *, is_inner: bool) -> Steps[None]:
        first = yield from self._source.peek()
        is_function = members.name is None and key in self._tools and first == "{"
        if key in _NAME_KEYS or (key == "function" and first == '"'):
            members.name = yield from self._string()
        elif key in _WRAPPERS and first == "{" and not is_inner:
            yield from self._object(members, is_inner=True)
        elif key in _ARGUMENT_KEYS or is_function:
            members.name = key if is_function else members.name
            if members.name is not None and first == "{" and self._held is None:
                self._begin(members.name, members.id)
                yield from self._source.json_value(self._argue)
            else:
                members.arguments = yield from self._raw()
        elif key in _ID_KEYS:
            members.id = str(_value((yield from self._raw())))
        elif key in _OTHER_KEYS:
            yield from self._raw()
        else:
            raise MalformedCallError(key)

    def _string(self) -> Steps[str]:
        if (yield from self._source.peek()) != '"':
            raise MalformedCallError("not a string")
        found = _value((yield from self._raw()))
        if not isinstance(found, str):
            raise MalformedCallError("not a string")
        return found

    def _raw(self) -> Steps[str]:
        parts: list[str] = []
        yield from self._source.json_value(parts.append)
        return "".join(parts)

    # A name, and arguments as JSON

    def _named(self) -> Steps[None]:
        style, source = self._style, self._source
        yield from source.take((style.name_mark,))
        head, _ = yield from source.word((style.separator,))
        name, _, identifier = head.strip().partition(style.id_mark or style.separator)
        if style.ids == "indexed":
            identifier, name = name, _INDEX.sub("", name)
        name = name.removeprefix(style.prefix)
        yield from source.skip_space()
        if style.fence[0]:
            yield from source.take((style.fence[0].strip(),))
            yield from source.skip_space()
        yield from self._object_arguments(name, identifier)
        if style.fence[1]:
            yield from source.skip_space()
            yield from source.take((style.fence[1].strip(),))

    # A name, and one tag per argument

    def _tags(self) -> Steps[None]:
        style, source = self._style, self._source
        yield from source.expect(style.name_mark)
        ends = (style.separator,) if style.name_mark else (
            style.separator, style.key_mark, *style.closers
        )  # fmt: skip
        name, end = yield from source.word(ends)
        if end != style.separator:
            source.at -= len(end)
        if style.head_end:
            yield from source.word((style.head_end,))
        name = name.strip()
        self._begin(name)
        self._argue("{")
        is_first = True
        while True:
            yield from source.skip_space()
            if not (yield from source.take((style.key_mark,))):
                break
            key, _ = yield from source.word((style.key_end,))
            hint = ""
            if style.head_end:
                hint, _ = yield from source.word((style.head_end,))
            if style.value_mark:
                yield from source.skip_space()
                yield from source.expect(style.value_mark)
            self._argue(f"{'' if is_first else ', '}{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._tag_value(self._kinds(name, key, hint))
            is_first = False
        if style.call_end:
            yield from source.expect(style.call_end)
        elif not (end := (yield from source.take(style.closers))):
            raise MalformedCallError(name)
        else:
            source.at -= len(end)
        self._argue("}")
        self._finish()

    def _kinds(self, name: str, key: str, hint: str) -> set[str]:
        """Returns the JSON types of an argument by the tag's attributes or the schema."""
        if any(one in hint for one in _TEXT_HINTS):
            return {"string"}
        kinds = self._tools.kinds(name, key)
        return set() if hint.strip() and kinds == {"string"} else kinds

    def _tag_value(self, kinds: set[str]) -> Steps[None]:
        style, source = self._style, self._source
        parts: list[str] = []
        if kinds == {"string"}:
            self._argue('"')
            escaped = _Escaped(self._argue, is_padded=style.is_padded)
            end = yield from source.until((style.value_end,), escaped.add)
            self._argue('"')
        else:
            end = yield from source.until((style.value_end,), parts.append)
            text = "".join(parts)
            if style.is_padded:
                text = text.removeprefix("\n").removesuffix("\n")
            self._argue(from_text(text, kinds))
        if not end:
            raise MalformedCallError("missing end of a value")

    # Python-style calls, and names with braces

    def _python(self, *, end: str) -> Steps[None]:
        source = self._source
        while True:
            name, _ = yield from source.word(("(",))
            name = name.strip().removesuffix(".call")
            if name not in self._tools:
                raise MalformedCallError(name)
            inner = yield from source.python_arguments()
            arguments = from_python(inner, self._tools.arguments(name))
            if arguments is None:
                raise MalformedCallError(name)
            self._begin(name)
            self._argue(arguments)
            self._finish()
            yield from source.skip_space()
            if end and (yield from source.take((end,))):
                return
            yield from source.take((",", ";"))
            yield from source.skip_space()
            if not _PYTHON_NAME.match((yield from source.peek())):
                return

    def _braces(self) -> Steps[None]:
        style, source = self._style, self._source
        yield from source.expect(style.name_mark)
        name, _ = yield from source.word(("{",))
        source.at -= 1
        parts: list[str] = []
        end = yield from source.until(style.closers, parts.append)
        source.at -= len(end)
        arguments = from_braces("".join(parts).strip(), style.quote)
        if arguments is None:
            raise MalformedCallError(name)
        self._begin(name.strip())
        self._argue(arguments)
        self._finish()


class _Escaped:
    """Passes text on as the content of a JSON string, without surrounding line breaks."""

    def __init__(self, passed: Callable[[str], object], *, is_padded: bool) -> None:
        self._passed = passed
        self._is_padded = is_padded
        self._is_start = True
        self._held = ""

    def add(self, text: str) -> None:
        """Adds a piece; a final line break is never passed on."""
        if not text:
            return
        if self._is_padded:
            if self._is_start:
                text = text.removeprefix("\n")
            text = self._held + text
            self._held = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        self._is_start = False
        self._passed(json.dumps(text, ensure_ascii=False)[1:-1])


def _value(text: str) -> Any:
    """Returns a JSON value; raises MalformedCallError for malformed JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise MalformedCallError(text[:100]) from failure


def _parsed(text: str) -> dict[str, Any] | None:
    """Returns a JSON object; None for other values."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
