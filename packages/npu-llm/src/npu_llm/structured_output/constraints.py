"""Constraints: the tokens that an answer in a given form may continue with."""

from __future__ import annotations

import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from npu_llm.errors import OptionError
from npu_llm.structured_output.forms import Form, llguidance

if TYPE_CHECKING:
    import torch

__all__ = ["ConstraintMaker", "FormConstraint", "FormProcessor", "TokenConstraint"]

_KEPT_FORMS = 16
_KEPT_S = 10.0  # of compiling; a form that takes 4 s has 250 MB


class TokenConstraint(Protocol):
    """Decides which tokens of one answer may come next."""

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow but an end token."""

    def mask(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits (vocabulary,) with -inf for tokens that are not allowed."""

    def advance(self, token: int) -> None:
        """Advances by the chosen token."""


@dataclass
class _Compiled:
    """A compiled form, and the processor time that it took; one thread compiles it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    matcher: Any = None
    seconds: float = 0.0


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
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def make(self, form: Form) -> FormConstraint:
        """Returns a constraint for a new answer.

        Raises:
            OptionError: [answer-form] for a form that is too expensive to enforce, or a tokenizer
                that does not support constraints.
        """
        known = self.prepare()
        with self._lock:
            compiled = self._compiled.setdefault(form.source, _Compiled())
            self._compiled.move_to_end(form.source)
            while len(self._compiled) > 1 and (
                len(self._compiled) > _KEPT_FORMS
                or sum(one.seconds for one in self._compiled.values()) > _KEPT_S
            ):
                self._compiled.popitem(last=False)
        with compiled.lock:
            if compiled.matcher is None:
                began = time.thread_time()
                compiled.matcher = llguidance().LLMatcher(known, form.source, log_level=0)
                compiled.seconds = time.thread_time() - began
        constraint = FormConstraint(compiled.matcher.deep_copy(), self._vocabulary, self._ends)
        constraint.check()
        return constraint

    def prepare(self) -> Any:
        """Computes and returns the data about the vocabulary; raises the errors of `make`."""
        with self._lock:
            if self._known is None:
                self._known = self._read()
            return self._known

    def _read(self) -> Any:
        tokens = getattr(self._tokenizer, "backend_tokenizer", None)
        if tokens is None:
            raise OptionError(
                "`form` must be omitted for a model without a fast tokenizer, got one for a "
                f"{type(self._tokenizer).__name__}. Omit it.",
                code="answer-form",
            )
        if tokens.padding is not None or tokens.truncation is not None:
            tokens = copy.deepcopy(tokens)
            tokens.no_padding()
            tokens.no_truncation()
        return llguidance().LLTokenizer(
            tokens.to_str(), n_vocab=self._vocabulary, eos_token=self._ends or None
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
