"""Forms of structured output: JSON schemas, regular expressions and grammars."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npu_llm.errors import OptionError

__all__ = ["JSON_OPTIONS", "Form", "given_form", "llguidance"]

_NAMES = ("schema", "regex", "grammar", "choice")
# Separators in JSON: nothing, a space, or a line break with indentation. Small models that may emit
# unlimited white space do so.
_BETWEEN_PARTS = r"( |\n {0,24})?"
# llguidance's options of JSON schemas.
JSON_OPTIONS: Mapping[str, Any] = {
    "whitespace_flexible": True,
    "whitespace_pattern": _BETWEEN_PARTS,
    "lenient": False,
}
# Classes that ECMAScript, and so JSON schema, limits to ASCII, unlike llguidance.
_ASCII_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_"}
_PATTERN_PART = re.compile(r"\\.|[][]", re.DOTALL)
_VALUES = ("const", "default", "enum", "example", "examples")  # keys without schemas
_MOST_DEPTH = 100
_GBNF_RULE = re.compile(r"^[ \t]*([\w-]+)[ \t]*::=", re.MULTILINE)


@dataclass(frozen=True)
class Form:
    """A form of structured output.

    Attributes:
        source: the form in llguidance's format.
    """

    source: str

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> Form:
        """Returns the form of JSON that matches a schema.

        Raises:
            OptionError: [answer-form] for a schema that cannot be enforced, [missing-llguidance].
        """
        matcher = llguidance().LLMatcher
        try:
            text = json.dumps(_with_ascii_patterns(schema), allow_nan=False)
            source = matcher.grammar_from_json_schema(text, overrides=dict(JSON_OPTIONS))
        except (TypeError, ValueError, RecursionError) as failure:
            raise _refusal("schema", str(failure)) from failure
        return cls._checked("schema", source)

    @classmethod
    def of_json(cls) -> Form:
        """Returns the form of any JSON object."""
        return cls.of_schema({"type": "object"})

    @classmethod
    def of_regex(cls, pattern: str) -> Form:
        r"""Returns the form of a regular expression's matches; raises the errors of of_schema.

        The classes \d and \w match ASCII only.
        """
        source = llguidance().LLMatcher.grammar_from_regex(_ascii_classes(pattern))
        return cls._checked("regex", source)

    @classmethod
    def of_choices(cls, texts: Sequence[str]) -> Form:
        """Returns the form of a choice among texts; raises the errors of of_schema."""
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise _refusal("choice", "an empty list, or an empty text")
        return cls.of_grammar("start: " + " | ".join(json.dumps(text) for text in texts))

    @classmethod
    def of_grammar(cls, text: str) -> Form:
        """Returns the form of a grammar; raises the errors of of_schema.

        Args:
            text: GBNF, as in llama.cpp, with a rule `root`; or Lark, as in llguidance, with a rule
                `start`.
        """
        if _GBNF_RULE.search(text):
            text = _lark(text)
        return cls._checked("grammar", llguidance().LLMatcher.grammar_from_lark(text))

    @classmethod
    def _checked(cls, name: str, source: str) -> Form:
        wrong = llguidance().LLMatcher.validate_grammar(source)
        if wrong:
            raise _refusal(name, wrong)
        return cls(source)


def given_form(options: dict[str, Any]) -> Form | None:
    """Removes schema, regex, grammar and choice from some options, and returns the form.

    Returns:
        The form; None if there is none.

    Raises:
        OptionError: [answer-form] for more than one form, or the errors of Form.of_schema.
    """
    given = {name: options.pop(name, None) for name in _NAMES}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return None
    if len(given) > 1:
        raise OptionError(
            f"`form` must be one of {', '.join(_NAMES)}, got {' and '.join(given)}. Omit the "
            "others.",
            code="answer-form",
        )
    ((name, value),) = given.items()
    wanted: dict[str, type[Any]] = {"schema": Mapping, "choice": list}
    if not isinstance(value, wanted.get(name, str)):
        raise _refusal(name, f"a {type(value).__name__}")
    make: Any = {
        "schema": Form.of_schema,
        "regex": Form.of_regex,
        "grammar": Form.of_grammar,
        "choice": Form.of_choices,
    }
    form: Form = make[name](value)
    return form


def llguidance() -> Any:
    """Returns the llguidance module.

    Raises:
        OptionError: [missing-llguidance] if it is not installed.
    """
    try:
        return importlib.import_module("llguidance")
    except ImportError as failure:
        raise OptionError(
            "`form` must be omitted without llguidance, which enforces it, got one. Run pip "
            'install "npu-llm[structured]".',
            code="missing-llguidance",
        ) from failure


def _lark(text: str) -> str:
    """Converts a GBNF grammar to Lark; raises OptionError [answer-form] for invalid GBNF."""
    llguidance()
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        found: str = gbnf_to_lark(text)
    except Exception as failure:  # the library raises bare exceptions
        raise _refusal("grammar", str(failure) or type(failure).__name__) from failure
    return found


def _ascii_classes(pattern: str) -> str:
    """Limits a regular expression's classes of digits and word characters to ASCII."""
    is_class = False

    def replaced(part: re.Match[str]) -> str:
        nonlocal is_class
        text = part[0]
        if text in "[]":
            is_class = text == "["
            return text
        members = _ASCII_CLASSES.get(text[1].lower())
        is_negated = text[1].isupper()
        if members is None or (is_class and is_negated):
            return text
        return members if is_class else f"[{'^' if is_negated else ''}{members}]"

    return _PATTERN_PART.sub(replaced, pattern)


def _with_ascii_patterns(schema: Any, depth: int = _MOST_DEPTH) -> Any:
    """Limits the classes in all patterns of a schema to ASCII."""
    if isinstance(schema, list) and depth:
        return [_with_ascii_patterns(one, depth - 1) for one in schema]
    if not isinstance(schema, Mapping) or not depth:
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "pattern" and isinstance(value, str):
            found[name] = _ascii_classes(value)
        elif name == "patternProperties" and isinstance(value, Mapping):
            found[name] = {
                _ascii_classes(str(key)): _with_ascii_patterns(one, depth - 1)
                for key, one in value.items()
            }
        else:
            found[name] = value if name in _VALUES else _with_ascii_patterns(value, depth - 1)
    return found


def _refusal(name: str, reason: str) -> OptionError:
    first = " ".join(reason.split())[:300].rstrip(".")
    return OptionError(
        f"`{name}` must describe a form that can be enforced, got {first}. Change it.",
        code="answer-form",
    )
