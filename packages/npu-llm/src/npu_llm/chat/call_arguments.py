"""Arguments of tool calls: their types by the functions' schemas, and conversion to JSON."""

from __future__ import annotations

import ast
import json
import re
import secrets
import string
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

__all__ = [
    "Tools",
    "from_braces",
    "from_python",
    "from_text",
    "new_id",
]

_SHORT_ID = string.ascii_letters + string.digits
_PYTHON_NAMES = {"true": True, "false": False, "null": None, "none": None}
_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]*)\s*:")


class Tools:
    """The functions that a model may call."""

    def __init__(self, functions: Sequence[Mapping[str, Any]]) -> None:
        """Stores the functions.

        Args:
            functions: functions with a name and optionally a JSON schema as `parameters`.
        """
        self._parameters = {str(one["name"]): _mapping(one.get("parameters")) for one in functions}

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def arguments(self, name: str) -> list[str]:
        """Returns the names of a function's arguments."""
        return list(self.properties(name))

    def properties(self, name: str) -> Mapping[str, Any]:
        """Returns the schemas of a function's arguments."""
        return _mapping(self._parameters[name].get("properties"))

    def kinds(self, name: str, argument: str) -> set[str]:
        """Returns the JSON types of an argument; empty if any type is allowed."""
        found = self.properties(name).get(argument)
        return _kinds(found, self._parameters[name], depth=8)


def new_id(form: Literal["random", "short", "indexed"], name: str, index: int) -> str:
    """Returns an identifier for a call.

    Args:
        form: "short" for nine letters and digits, as Mistral's templates require; "indexed" for
            functions.name:index, as in Kimi's templates.
        name: the function's name.
        index: the number of calls before it.
    """
    if form == "short":
        return "".join(secrets.choice(_SHORT_ID) for _ in range(9))
    if form == "indexed":
        return f"functions.{name}:{index}"
    return f"call_{uuid.uuid4().hex[:24]}"


def from_text(text: str, kinds: set[str]) -> str:
    """Returns an unquoted value as JSON.

    Args:
        text: the value.
        kinds: its JSON types by the function's schema; empty if any type is allowed.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if "string" not in kinds or (value is None and "null" in kinds):
        return text.strip()
    return json.dumps(text, ensure_ascii=False)


def from_python(text: str, names: Sequence[str]) -> str | None:
    """Returns the arguments of a call in Python as a JSON object; None if they are not literals.

    Args:
        text: the arguments, without the brackets around them.
        names: argument names by position.
    """
    try:
        call = ast.parse(f"f({text}\n)", mode="eval").body
        if not isinstance(call, ast.Call) or len(call.args) > len(names):
            return None
        found = {name: _literal(value) for name, value in zip(names, call.args, strict=False)} | {
            str(keyword.arg): _literal(keyword.value) for keyword in call.keywords
        }
        if any(keyword.arg is None for keyword in call.keywords):
            return None
        return json.dumps(found, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def from_braces(text: str, quote: str) -> str | None:
    """Converts {key:value} with marks instead of quotes to a JSON object; None if it is malformed.

    Args:
        text: the text including the braces.
        quote: the mark used as a quote.
    """
    parts = text.split(quote)
    if len(parts) % 2 == 0:
        return None
    parts = [
        json.dumps(part, ensure_ascii=False) if index % 2 else _BARE_KEY.sub(r'\1"\2":', part)
        for index, part in enumerate(parts)
    ]
    joined = "".join(parts)
    try:
        return joined if isinstance(json.loads(joined), dict) else None
    except (ValueError, RecursionError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    """Returns an object from a schema; an empty one for values of other types."""
    return value if isinstance(value, Mapping) else {}


def _refuse(name: str) -> None:
    """Raises ValueError for NaN and infinities, which JSON does not support."""
    raise ValueError(name)


def _literal(node: ast.expr) -> Any:
    """Returns the value of a Python literal, which may use JSON's names; raises ValueError."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
        return node.value
    if isinstance(node, ast.Name) and node.id in _PYTHON_NAMES:
        return _PYTHON_NAMES[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _literal(key) for key in node.keys]
        if all(isinstance(key, str) for key in keys):
            return dict(zip(keys, map(_literal, node.values), strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if isinstance(value, (int, float)):
            return -value
    raise ValueError(ast.dump(node)[:100])


def _kinds(schema: Any, root: Mapping[str, Any], *, depth: int) -> set[str]:
    """Returns the JSON types that a schema allows; empty if any, or if the schema is too deep."""
    if not isinstance(schema, Mapping) or not depth:
        return set()
    if isinstance(place := schema.get("$ref"), str):
        return _kinds(_referred(place, root), root, depth=depth - 1)
    if isinstance(kind := schema.get("type"), str):
        return {kind}
    if isinstance(kind, list):
        return {str(one) for one in kind}
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := schema.get(name), list):
            found = [_kinds(part, root, depth=depth - 1) for part in parts]
            return set().union(*found) if all(found) else set()
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return {_kind_of(value) for value in values} if isinstance(values, list) else set()


def _referred(place: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in place.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (int, float)):
        return "number"
    return "array" if isinstance(value, list) else "object"
