"""TokenConstraint: which tokens one answer may have next, given its form."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from npu_llm.errors import OptionError
from npu_llm.structured.form import Form, llguidance

__all__ = ["ConstraintMaker", "TokenConstraint"]


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
