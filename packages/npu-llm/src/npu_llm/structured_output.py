"""Structured output: holds answers to a JSON schema, a regular expression or a grammar."""

from __future__ import annotations

import copy
import importlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from npu_llm.errors import OptionError

__all__ = [
    "ConstraintMaker",
    "Form",
    "FormProcessor",
    "TokenConstraint",
    "given_form",
    "llguidance",
]

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


class ConstraintMaker:
    """Makes the constraints for a model's answers; what it knows of the tokens is found once."""

    def __init__(self, tokenizer: Any, *, vocabulary: int, ends: Sequence[int]) -> None:
        """Names the tokens.

        Args:
            tokenizer: the model's, of transformers' fast kind.
            vocabulary: how many logits the model has for a token.
            ends: the tokens that end an answer.
        """
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = list(ends)
        self._known: Any = None
        self._lock = threading.Lock()

    def make(self, form: Form) -> TokenConstraint:
        """Returns a constraint for a new answer.

        Raises:
            OptionError: [answer-form] for a form that takes too much to follow, or a tokenizer
                that cannot be used for one.
        """
        with self._lock:
            if self._known is None:
                self._known = self._read()
        matcher = llguidance().LLMatcher(self._known, form.source)
        constraint = TokenConstraint(matcher, self._vocabulary, self._ends)
        constraint.check()
        return constraint

    def _read(self) -> Any:
        tokens = getattr(self._tokenizer, "backend_tokenizer", None)
        if tokens is None:
            raise OptionError(
                "form: must be asked of a model with a fast tokenizer; got a "
                f"{type(self._tokenizer).__name__}. Omit it.",
                code="answer-form",
            )
        plain = copy.deepcopy(tokens)
        plain.no_padding()
        plain.no_truncation()
        return llguidance().LLTokenizer(
            plain.to_str(), n_vocab=self._vocabulary, eos_token=self._ends or None
        )


class TokenConstraint:
    """The place of one answer in its form."""

    def __init__(self, matcher: Any, vocabulary: int, ends: Sequence[int]) -> None:
        self._matcher = matcher
        self._ends = list(ends)
        self._vocabulary = vocabulary
        self._bits = torch.zeros(-(-vocabulary // 32), dtype=torch.int32)

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow but an end token."""
        return bool(self._matcher.is_stopped())

    def mask(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits (vocabulary,) with -inf for tokens that may not come.

        Once the answer is over, only end tokens may.

        Raises:
            OptionError: [answer-form] if the next token takes too much work to find.
        """
        if self.is_over:
            held = torch.full_like(logits, -torch.inf)
            held[self._ends] = logits[self._ends]
            return held
        self._matcher.unsafe_compute_mask_ptr(self._bits.data_ptr(), self._bits.numel() * 4)
        self.check()
        # Bit 0 of a byte is the first token.
        bits = np.unpackbits(
            self._bits.numpy().view(np.uint8), count=self._vocabulary, bitorder="little"
        )
        return torch.where(torch.from_numpy(bits).view(torch.bool), logits, -torch.inf)

    def advance(self, token: int) -> None:
        """Takes the token that was chosen.

        Raises:
            OptionError: [answer-form] for one that may not come.
        """
        if not self.is_over:
            self._matcher.consume_token(token)
            self.check()

    def check(self) -> None:
        """Raises OptionError [answer-form] if the form cannot be followed any more."""
        if self._matcher.is_error():
            reason = " ".join(str(self._matcher.get_error()).split())[:300].rstrip(".")
            raise OptionError(
                "form: must be one that can be followed token by token within bounds; got "
                f"{reason}. Simplify it.",
                code="answer-form",
            )


class FormProcessor:
    """A logits processor of transformers, for one generation without beams."""

    def __init__(self, maker: ConstraintMaker, form: Form) -> None:
        self._maker = maker
        self._form = form
        self._rows: list[TokenConstraint] = []
        self._length = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns scores with -inf for tokens that may not come.

        Args:
            input_ids: (rows, tokens) int64, prompt and answer so far.
            scores: (rows, vocabulary) float32.
        """
        if not self._rows:
            self._rows = [self._maker.make(self._form) for _ in input_ids]
        else:
            new = input_ids[:, self._length :].tolist()
            for row, tokens in zip(self._rows, new, strict=True):
                for token in tokens:
                    row.advance(token)
        self._length = input_ids.shape[1]
        rows = zip(self._rows, scores.cpu(), strict=True)
        return torch.stack([row.mask(its_scores) for row, its_scores in rows]).to(scores.device)
