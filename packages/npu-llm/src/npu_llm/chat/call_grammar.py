"""Grammars that force an answer to call tools, in the model's call style."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npu_llm.chat.call_arguments import Tools
from npu_llm.chat.call_styles import CallStyle
from npu_llm.structured_output import JSON_OPTIONS

__all__ = ["call_grammar", "split_special"]

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_DEFINITIONS = ("$defs", "definitions")
_LINE = 'line: "\\n"?'
_ANY_TEXT = r"/(.|\n)*/"
_MOST_CALLS = 16  # without a limit some small models call forever


def call_grammar(
    style: CallStyle,
    functions: Sequence[Mapping[str, Any]],
    special: Mapping[str, int],
    *,
    name: str | None = None,
    is_parallel: bool = False,
    before: str = "",
) -> str:
    """Returns the grammar of an answer that calls functions, in llguidance's Lark syntax.

    Args:
        style: the style of the model's calls.
        functions: the available functions, with a name and optionally `parameters`.
        special: special tokens by their text.
        name: the function that must be called; None for any function.
        is_parallel: whether several calls are allowed.
        before: text before the calls.
    """
    return _Grammar(style, functions, special).whole(name, is_parallel=is_parallel, before=before)


def split_special(text: str, special: Mapping[str, int]) -> list[str]:
    """Splits a text into special tokens and the text between them."""
    names = sorted((name for name in special if name in text), key=len, reverse=True)
    if not names:
        return [text] if text else []
    pattern = "|".join(map(re.escape, names))
    return [part for part in re.split(f"({pattern})", text) if part]


class _Grammar:
    """The rules of one grammar."""

    def __init__(
        self,
        style: CallStyle,
        functions: Sequence[Mapping[str, Any]],
        special: Mapping[str, int],
    ) -> None:
        self._style = style
        self._functions = functions
        self._tools = Tools(functions)
        self._special = special
        self._rules: list[str] = []

    def whole(self, name: str | None, *, is_parallel: bool, before: str) -> str:
        style = self._style
        first, opening, closing, last = map(self._text, style.written_frame)
        write: Callable[[Mapping[str, Any]], str] = {
            "json": self._json,
            "named": self._named,
            "tags": self._tags,
            "python": self._python,
            "braces": self._braces,
            "channels": self._message,
        }[style.kind]
        calls = [
            self._rule("call", f"{opening} {write(function)} {closing}")
            for function in self._functions
            if name in (None, function["name"])
        ]
        one = self._rule("any", " | ".join(calls))
        several = one
        if is_parallel and not (style.kind == "channels" and not style.begins_in_header):
            between = self._between()
            several = f"{one} ({between} {one}){{0,{_MOST_CALLS - 1}}}"
        start = f"start: {self._text(before)} {first} {several} {last}"
        return "\n".join([start, _LINE, *self._rules]) + "\n"

    def _between(self) -> str:
        style = self._style
        if style.kind == "channels":
            head = f"\n{style.starts[0]}assistant\n{style.name_mark}"
            return self._text(head if style.name_mark else style.starts[0])
        if style.is_list:
            return self._text(", ")
        return self._text("; ") if style.is_bare and style.frame is None else "line"

    # One call in each style

    def _json(self, function: Mapping[str, Any]) -> str:
        name, key = self._style.keys
        said = json.dumps(function["name"])
        head = f'{{"{name}": {said}, "{key}": ' if name else f"{{{said}: "
        return f"{self._text(head)} {self._arguments(function)} {self._text('}')}"

    def _named(self, function: Mapping[str, Any]) -> str:
        style = self._style
        name = f"{style.prefix}{function['name']}"
        if style.ids == "indexed":
            name += ":0"
        head = f"{style.name_mark}{name}{style.separator}{style.fence[0]}"
        return f"{self._text(head)} {self._arguments(function)} {self._text(style.fence[1])}"

    def _message(self, function: Mapping[str, Any]) -> str:
        style, name = self._style, function["name"]
        if style.begins_in_header:
            line = "" if style.separator == "\n" else "\n"
            return f"{self._text(f'{name}{line}{style.separator}')} {self._arguments(function)}"
        head = f"<|channel|>commentary to={style.prefix}{name} {style.fence[0]}{style.separator}"
        return f"{self._text(head)} {self._arguments(function)}"

    def _tags(self, function: Mapping[str, Any]) -> str:
        style = self._style
        name = function["name"]
        head = f"{style.name_mark}{name}{style.separator}"
        if style.head_end:
            attributes = ' index="1"' if style.head_end != ">" else ""
            head += f"{attributes}{style.head_end}"
        parts = ["line", self._text(head), "line"]
        for key, schema, is_needed in self._properties(function):
            value = self._tag_value(function, key, schema)
            line = "line" if style.value_mark else ""
            one = f"{self._text(self._key(name, key))} {line} {value} line"
            parts.append(f"({one})" if is_needed else f"({one})?")
        return " ".join([*parts, self._text(style.call_end), "line"])

    def _key(self, name: str, key: str) -> str:
        """Returns the text before a value."""
        style = self._style
        is_text = self._is_text(name, key)
        hint = ""
        if style.head_end == ">":
            hint = f' string="{"true" if is_text else "false"}"'
        elif style.head_end:
            hint = f' type="{"string" if is_text else "object"}"'
        return f"{style.key_mark}{key}{style.key_end}{hint}{style.head_end}"

    def _tag_value(self, function: Mapping[str, Any], key: str, schema: Any) -> str:
        style = self._style
        pad = "\n" if style.is_padded else ""
        before, end = self._text(style.value_mark + pad), f"{pad}{style.value_end}"
        if not self._is_text(function["name"], key):
            return f"{before} {self._value(function, schema)} {self._text(end)}"
        if choices := self._choices(schema):
            return f"{before} {choices} {self._text(end)}"
        if self._text(style.value_end).startswith("<"):  # a special token, never in text
            return f"{before} {self._rule('text', _ANY_TEXT)} {self._text(end)}"
        return f"{before} {self._rule(f'text[suffix={json.dumps(end)}]', _ANY_TEXT)}"

    def _python(self, function: Mapping[str, Any]) -> str:
        members = [
            (f"{self._text(f'{key}=')} {self._value(function, schema)}", is_needed)
            for key, schema, is_needed in self._properties(function)
        ]
        return f"{self._text(function['name'] + '(')} {self._members(members)} {self._text(')')}"

    def _braces(self, function: Mapping[str, Any]) -> str:
        style, members = self._style, []
        quote = self._text(style.quote)
        for key, schema, is_needed in self._properties(function):
            value = self._value(function, schema)
            if self._is_text(function["name"], key):
                text = self._choices(schema) or self._rule("text", "/[^<]*/")
                value = f"{quote} {text} {quote}"
            members.append((f"{self._text(f'{key}:')} {value}", is_needed))
        head = self._text(f"{style.name_mark}{function['name']}{{")
        return f"{head} {self._members(members, comma=',')} {self._text('}')}"

    def _members(self, members: Sequence[tuple[str, bool]], *, comma: str = ", ") -> str:
        """Returns comma-separated members in order, some of which are optional."""
        first, rest = "", ""  # of the rest: if none was written before, and if some were
        for text, is_needed in reversed(members):
            later = f"{self._text(comma)} {text} {rest}"
            begun = f"{text} {rest}"
            if is_needed:
                first, rest = begun, later
            else:
                first = f"({begun} | {first})" if first else f"({begun})?"
                rest = f"({later} | {rest})" if rest else f"({later})?"
            first, rest = self._rule("first", first), self._rule("rest", rest)
        return first

    # Values

    def _choices(self, schema: Any) -> str:
        """Returns the strings that a schema enumerates; "" if it does not."""
        choices = schema.get("enum") if isinstance(schema, Mapping) else None
        if not isinstance(choices, list) or not choices:
            return ""
        if not all(isinstance(one, str) and one for one in choices):
            return ""
        return f"({' | '.join(map(self._text, choices))})"

    def _properties(self, function: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
        root = self._root(function)
        needed = root.get("required")
        found = self._tools.properties(function["name"])
        return [
            (key, schema, isinstance(needed, list) and key in needed)
            for key, schema in found.items()
        ]

    def _root(self, function: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the schema of a function's arguments."""
        found = function.get("parameters")
        return found if isinstance(found, Mapping) and found else _NO_ARGUMENTS

    def _is_text(self, name: str, key: str) -> bool:
        kinds = self._tools.kinds(name, key)
        return not kinds or "string" in kinds

    def _arguments(self, function: Mapping[str, Any]) -> str:
        schema = self._root(function)
        return self._schema(schema if "type" in schema else {"type": "object", **schema})

    def _value(self, function: Mapping[str, Any], schema: Any) -> str:
        """Returns the rule of a value, which may refer to the function's definitions."""
        root = self._root(function)
        if not isinstance(schema, Mapping):
            schema = {}
        shared = {name: root[name] for name in _DEFINITIONS if name in root}
        return self._schema({**shared, **schema})

    def _schema(self, schema: Mapping[str, Any]) -> str:
        return self._rule("json", f"%json {json.dumps({**schema, 'x-guidance': JSON_OPTIONS})}")

    def _rule(self, name: str, body: str) -> str:
        """Adds a rule; returns its name."""
        base, bracket, attributes = name.partition("[")
        whole = f"{base}_{len(self._rules)}"
        self._rules.append(f"{whole}{bracket}{attributes}: {body.strip() or chr(34) * 2}")
        return whole

    def _text(self, text: str) -> str:
        """Returns terminals for a text that may contain special tokens."""
        return " ".join(
            f"<[{self._special[part]}]>" if part in self._special else json.dumps(part)
            for part in split_special(text, self._special)
        )
