"""Constraints: the tokens that an answer in a given form may continue with."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from npu_llm.errors import OptionError
from npu_llm.structured_output.forms import Form, llguidance

if TYPE_CHECKING:
    import torch

__all__ = ["ConstraintMaker", "FormConstraint", "FormProcessor", "TokenConstraint"]

_KEPT_FORMS = 16


class TokenConstraint(Protocol):
    """Decides which tokens of one answer may come next."""

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow but an end token."""

    def mask(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits (vocabulary,) with -inf for tokens that are not allowed."""

    def advance(self, token: int) -> None:
        """Advances by the chosen token."""


class ConstraintMaker:
    """Creates constraints for a model's answers; data about its vocabulary are computed once."""

    def __init__(self, tokenizer: Any, *, vocabulary: int, ends: Sequence[int]) -> None:
        """Stores the model's tokens.

        Args:
            tokenizer: the model's tokenizer, a fast tokenizer of transformers.
            vocabulary: number of logits per token.
            ends: the model's end tokens.
        """
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = list(ends)
        self._known: Any = None
        self._matchers: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def make(self, form: Form) -> FormConstraint:
        """Returns a constraint for a new answer.

        Raises:
            OptionError: [answer-form] for a form that is too expensive to enforce, or a tokenizer
                that does not support constraints.
        """
        with self._lock:
            if self._known is None:
                self._known = self._read()
            matcher = self._matchers.get(form.source)
        if matcher is None:
            matcher = llguidance().LLMatcher(self._known, form.source, log_level=0)
        with self._lock:
            self._matchers[form.source] = matcher
            self._matchers.move_to_end(form.source)
            if len(self._matchers) > _KEPT_FORMS:
                self._matchers.popitem(last=False)
        constraint = FormConstraint(matcher.deep_copy(), self._vocabulary, self._ends)
        constraint.check()
        return constraint

    def _read(self) -> Any:
        tokens = getattr(self._tokenizer, "backend_tokenizer", None)
        if tokens is None:
            raise OptionError(
                "`form` must be omitted for a model without a fast tokenizer, got one for a "
                f"{type(self._tokenizer).__name__}. Omit it.",
                code="answer-form",
            )
        plain = copy.deepcopy(tokens)
        plain.no_padding()
        plain.no_truncation()
        return llguidance().LLTokenizer(
            plain.to_str(), n_vocab=self._vocabulary, eos_token=self._ends or None
        )


class FormConstraint:
    """The state of one answer within its form."""

    def __init__(self, matcher: Any, vocabulary: int, ends: Sequence[int]) -> None:
        self._matcher = matcher
        self._ends = list(ends)
        self._vocabulary = vocabulary
        import torch  # imported late, also below: seldom needed

        self._bits = torch.zeros(-(-vocabulary // 32), dtype=torch.int32)

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow but an end token."""
        return bool(self._matcher.is_stopped())

    def mask(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits (vocabulary,) with -inf for tokens that are not allowed.

        At the end of the answer, only end tokens are allowed.

        Raises:
            OptionError: [answer-form] if computing the next tokens is too expensive.
        """
        import torch

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
        """Advances by the chosen token.

        Raises:
            OptionError: [answer-form] for a token that is not allowed.
        """
        if not self.is_over:
            self._matcher.consume_token(token)
            self.check()

    def allows(self, token: int) -> bool:
        """Whether a token is allowed next."""
        if self.is_over:
            return token in self._ends
        return bool(self._matcher.validate_tokens([token]))

    def check(self) -> None:
        """Raises OptionError [answer-form] if the form can no longer be enforced."""
        if self._matcher.is_error():
            reason = " ".join(str(self._matcher.get_error()).split())[:300].rstrip(".")
            raise OptionError(
                f"`form` must be enforceable token by token within limits, got {reason}. Simplify "
                "it.",
                code="answer-form",
            )


class FormProcessor:
    """A logits processor of transformers, for one generation without beam search."""

    def __init__(self, maker: ConstraintMaker, form: Form) -> None:
        self._maker = maker
        self._form = form
        self._rows: list[FormConstraint] = []
        self._length = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns scores with -inf for tokens that are not allowed.

        Args:
            input_ids: (rows, tokens) int64, prompt and answer so far.
            scores: (rows, vocabulary) float32.
        """
        import torch

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
