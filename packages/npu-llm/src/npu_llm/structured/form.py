"""Form: what an answer must look like, checked before a model is asked."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npu_llm.errors import OptionError

__all__ = ["Form", "given_form", "llguidance"]

_NAMES = ("schema", "regex", "grammar")
# Between the parts of JSON: nothing, a space, or a new line with its indentation. A small model
# that may write white space without end does.
_BETWEEN_PARTS = r"( |\n {0,24})?"


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
            text = json.dumps(schema, allow_nan=False)
            source = matcher.grammar_from_json_schema(
                text,
                overrides={
                    "whitespace_flexible": True,
                    "whitespace_pattern": _BETWEEN_PARTS,
                    "lenient": False,
                },
            )
        except (TypeError, ValueError, RecursionError) as failure:
            raise _refusal("schema", str(failure)) from failure
        return cls._checked("schema", source)

    @classmethod
    def of_json(cls) -> Form:
        """Returns the form of any JSON object."""
        return cls.of_schema({"type": "object"})

    @classmethod
    def of_regex(cls, pattern: str) -> Form:
        """Returns the form of texts that a regular expression matches; raises as of_schema does."""
        return cls._checked("regex", llguidance().LLMatcher.grammar_from_regex(pattern))

    @classmethod
    def of_grammar(cls, text: str) -> Form:
        """Returns the form that a grammar in Lark's notation describes; raises as of_schema does.

        The notation is that of llguidance.
        """
        return cls._checked("grammar", llguidance().LLMatcher.grammar_from_lark(text))

    @classmethod
    def _checked(cls, name: str, source: str) -> Form:
        wrong = llguidance().LLMatcher.validate_grammar(source)
        if wrong:
            raise _refusal(name, wrong)
        return cls(source)


def given_form(options: dict[str, Any]) -> Form | None:
    """Takes schema, regex and grammar out of some options, and returns the form; None if none is.

    Raises:
        OptionError: [answer-form] for more than one, or as Form.of_schema does.
    """
    given = {name: options.pop(name, None) for name in _NAMES}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return None
    if len(given) > 1:
        raise OptionError(
            f"form: must be one of {', '.join(_NAMES)}; got {' and '.join(given)}. Omit the "
            "others.",
            code="answer-form",
        )
    ((name, value),) = given.items()
    wanted = Mapping if name == "schema" else str
    if not isinstance(value, wanted):
        raise _refusal(name, f"a {type(value).__name__}")
    make: Any = {"schema": Form.of_schema, "regex": Form.of_regex, "grammar": Form.of_grammar}
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
            "form: must have llguidance, which bounds answers; got none. Run pip install "
            '"npu-llm[structured]".',
            code="missing-llguidance",
        ) from failure


def _refusal(name: str, reason: str) -> OptionError:
    first = " ".join(reason.split())[:300].rstrip(".")
    return OptionError(
        f"{name}: must describe a form that answers can be held to; got {first}. Change it.",
        code="answer-form",
    )
