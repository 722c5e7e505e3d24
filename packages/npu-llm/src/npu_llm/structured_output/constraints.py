"""Constraints: the tokens with which an answer stays in its form."""

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
        """Returns logits (vocabulary,) with -inf for tokens that may not come."""

    def advance(self, token: int) -> None:
        """Takes the token that was chosen."""


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
        self._matchers: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def make(self, form: Form) -> FormConstraint:
        """Returns a constraint for a new answer.

        Raises:
            OptionError: [answer-form] for a form that takes too much to follow, or a tokenizer
                that cannot be used for one.
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
                "`form` must be asked of a model with a fast tokenizer, got a "
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
    """The place of one answer in its form."""

    def __init__(self, matcher: Any, vocabulary: int, ends: Sequence[int]) -> None:
        self._matcher = matcher
        self._ends = list(ends)
        self._vocabulary = vocabulary
        import torch  # late, here and below: answers without a form need none

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
        """Takes the token that was chosen.

        Raises:
            OptionError: [answer-form] for one that may not come.
        """
        if not self.is_over:
            self._matcher.consume_token(token)
            self.check()

    def allows(self, token: int) -> bool:
        """Whether a token may come."""
        if self.is_over:
            return token in self._ends
        return bool(self._matcher.validate_tokens([token]))

    def check(self) -> None:
        """Raises OptionError [answer-form] if the form cannot be followed any more."""
        if self._matcher.is_error():
            reason = " ".join(str(self._matcher.get_error()).split())[:300].rstrip(".")
            raise OptionError(
                "`form` must be one that can be followed token by token within bounds, got "
                f"{reason}. Simplify it.",
                code="answer-form",
            )


class FormProcessor:
    """A logits processor of transformers, for one generation without beams."""

    def __init__(self, maker: ConstraintMaker, form: Form) -> None:
        self._maker = maker
        self._form = form
        self._rows: list[FormConstraint] = []
        self._length = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns scores with -inf for tokens that may not come.

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
