"""Calls of tools in answers: how models of several makers write them, and how they are read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from npu_llm.tokenizer.detokenizer import StopStrings

__all__ = ["Call", "CallReader", "CallStyle", "call_schema", "read_calls", "style_of"]

# "tags": <tool_call>{...}</tool_call>, as Qwen writes; "marker": [TOOL_CALLS] and JSON, as Mistral
# does; "bare": JSON alone, as Llama 3 does.
CallStyle = Literal["tags", "marker", "bare"]

_OPENINGS: dict[CallStyle, tuple[str, ...]] = {
    "tags": ("<tool_call>",),
    "marker": ("[TOOL_CALLS]",),
    "bare": ("<|python_tag|>",),
}


@dataclass(frozen=True)
class Call:
    """A call that a model asks for.

    Attributes:
        id: names it in the answer to it.
        name: which function.
        arguments: a JSON object, as text.
    """

    id: str
    name: str
    arguments: str

    def content(self) -> dict[str, Any]:
        """Returns it as OpenAI's interface has it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def style_of(template: str | None) -> CallStyle | None:
    """Returns how a model writes calls, by its chat template; None if that knows no tools."""
    if not template or "tools" not in template:
        return None
    if "<tool_call>" in template:
        return "tags"
    return "marker" if "[TOOL_CALLS]" in template else "bare"


def call_schema(
    tools: Sequence[Mapping[str, Any]], style: CallStyle, *, name: str | None = None
) -> dict[str, Any]:
    """Returns the schema of a call, for an answer that must be one.

    Args:
        tools: the functions, each with name and, maybe, parameters.
        style: decides what the arguments are called.
        name: which must be called; None for any.
    """
    key = _key(style)
    kinds = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["name"]},
                key: tool.get("parameters") or {"type": "object"},
            },
            "required": ["name", key],
            "additionalProperties": False,
        }
        for tool in tools
        if name in (None, tool["name"])
    ]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def read_calls(text: str, style: CallStyle, names: Sequence[str]) -> list[Call]:
    """Returns the calls in a text; empty if it is not calls of known functions and nothing else."""
    body = text.strip()
    for opening in _OPENINGS[style]:
        body = body.removeprefix(opening).strip()
    parts = body.split(_OPENINGS["marker"][0]) if style == "marker" else [body]
    found: list[Call] = []
    for part in parts:
        calls = _calls(part.strip(), style)
        if not calls or any(call.name not in names for call in calls):
            return []
        found += calls
    return found


class CallReader:
    """Passes a streamed answer on up to where its calls begin."""

    def __init__(self, style: CallStyle, names: Sequence[str]) -> None:
        self._style = style
        self._names = names
        self._before = StopStrings(_OPENINGS[style])
        self._text = ""
        self._passed = 0

    def take(self, piece: str) -> str:
        """Takes the next piece; returns what is certainly not part of a call."""
        self._text += piece
        beginning = self._text.lstrip()
        if self._style == "bare" and (not beginning or beginning.startswith("{")):
            return ""
        fresh = self._before.take(self._text[self._passed :])
        self._passed = len(self._text)
        return fresh

    def end(self) -> tuple[str, list[Call]]:
        """Returns, once the answer has ended, the text still to pass on, and the calls."""
        opening = _OPENINGS[self._style][0]
        place = self._text.find(opening)
        if place < 0 and self._style == "bare" and self._text.lstrip().startswith("{"):
            place = 0
        if place < 0:
            return self._before.rest(), []
        calls = read_calls(self._text[place:], self._style, self._names)
        return ("", calls) if calls else (self._text[place:], [])


def _key(style: CallStyle) -> str:
    return "parameters" if style == "bare" else "arguments"


def _calls(text: str, style: CallStyle) -> list[Call]:
    """Returns the calls in a text without its opening; empty if there is anything else."""
    name, separator, arguments = text.partition("[ARGS]")
    if style == "marker" and separator:
        return _named([{"name": name.strip(), "arguments": _parsed(arguments)}])
    for mark in ("<tool_call>", "</tool_call>") if style == "tags" else ():
        text = text.replace(mark, "\n")
    decoder = json.JSONDecoder()
    found: list[Any] = []
    place = 0
    while place < len(text):
        if text[place].isspace() or (style == "bare" and text[place] == ";"):
            place += 1
            continue
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return []
        found += value if isinstance(value, list) else [value]
    return _named(found)


def _named(found: Sequence[Any]) -> list[Call]:
    calls = []
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            return []
        arguments = one.get("arguments", one.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _parsed(arguments)
        if not isinstance(arguments, dict):
            return []
        calls.append(Call(f"call_{uuid.uuid4().hex[:24]}", one["name"], json.dumps(arguments)))
    return calls


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
