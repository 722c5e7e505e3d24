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
# Between the parts of JSON: nothing, a space, or a new line with its indentation. A small model
# that may write white space without end does.
_BETWEEN_PARTS = r"( |\n {0,24})?"
# llguidance's options of JSON schemas.
JSON_OPTIONS: Mapping[str, Any] = {
    "whitespace_flexible": True,
    "whitespace_pattern": _BETWEEN_PARTS,
    "lenient": False,
}
# Classes that schemas, as ECMAScript, limit to ASCII, and llguidance does not.
_ASCII_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_"}
_PATTERN_PART = re.compile(r"\\.|[][]", re.DOTALL)
_VALUES = ("const", "default", "enum", "example", "examples")  # in which patterns are not schemas
_MOST_DEPTH = 100
_GBNF_RULE = re.compile(r"^[ \t]*([\w-]+)[ \t]*::=", re.MULTILINE)


@dataclass(frozen=True)
class Form:
    """A form of answers.

    Attributes:
        source: as llguidance reads it.
    """

    source: str

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> Form:
        """Returns the form of JSON that a schema describes.

        Raises:
            OptionError: [answer-form] for a schema that cannot bound an answer,
                [missing-llguidance].
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
        r"""Returns the form of texts that a regular expression matches; raises as of_schema does.

        The classes \d and \w are those of ASCII.
        """
        source = llguidance().LLMatcher.grammar_from_regex(_ascii_classes(pattern))
        return cls._checked("regex", source)

    @classmethod
    def of_choices(cls, texts: Sequence[str]) -> Form:
        """Returns the form of one of some texts; raises as of_schema does."""
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise _refusal("choice", "an empty list, or an empty text")
        return cls.of_grammar("start: " + " | ".join(json.dumps(text) for text in texts))

    @classmethod
    def of_grammar(cls, text: str) -> Form:
        """Returns the form that a grammar describes; raises as of_schema does.

        Args:
            text: GBNF, as llama.cpp reads it, with a rule `root`; or Lark, as llguidance reads it,
                with a rule `start`.
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
    """Takes schema, regex, grammar and choice out of some options, and returns the form.

    Returns:
        The form; None if none of them is there.

    Raises:
        OptionError: [answer-form] for more than one, or as Form.of_schema does.
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
    """Returns the library that knows which tokens a grammar allows.

    Raises:
        OptionError: [missing-llguidance] where it is not installed.
    """
    try:
        return importlib.import_module("llguidance")
    except ImportError as failure:
        raise OptionError(
            "`form` must have llguidance, which bounds answers, got none. Run pip install "
            '"npu-llm[structured]".',
            code="missing-llguidance",
        ) from failure


def _lark(text: str) -> str:
    """Returns a grammar in GBNF as Lark; raises OptionError [answer-form] for what is not GBNF."""
    llguidance()
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        found: str = gbnf_to_lark(text)
    except Exception as failure:  # the library raises bare ones
        raise _refusal("grammar", str(failure) or type(failure).__name__) from failure
    return found


def _ascii_classes(pattern: str) -> str:
    """Returns a regular expression whose classes of digits and word characters are of ASCII."""
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
    """Returns a schema in which the classes of all patterns are of ASCII."""
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
        f"`{name}` must describe a form that answers can be held to, got {first}. Change it.",
        code="answer-form",
    )
