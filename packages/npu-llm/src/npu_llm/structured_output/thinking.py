"""ThinkingGate: leaves the reasoning of an answer unconstrained, and limits its length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from npu_llm.structured_output.constraints import FormConstraint

if TYPE_CHECKING:
    import torch

__all__ = ["ThinkingGate"]


class ThinkingGate:
    """Applies a constraint to the text after the reasoning; has the interface of TokenConstraint.

    If the prompt has not opened the reasoning, the answer may.
    """

    def __init__(
        self,
        *,
        start: Sequence[int],
        end: Sequence[int],
        is_open: bool,
        ends: Sequence[int],
        budget: int | None = None,
        direct: FormConstraint | None = None,
        after: FormConstraint | None = None,
        bridge: Sequence[int] = (),
        must_think: bool = False,
    ) -> None:
        """Stores the marks of the reasoning.

        Args:
            start: tokens of the mark before it.
            end: tokens of the mark after it.
            is_open: whether the prompt ends with the start mark.
            ends: end tokens; not allowed within reasoning that a constraint follows.
            budget: maximum number of reasoning tokens before the end mark is forced; None for no
                limit.
            direct: constraint of an answer without reasoning; None for no form.
            after: constraint of the text after the reasoning.
            bridge: tokens that are forced after the end mark.
            must_think: whether the start mark is forced if the prompt does not contain it.
        """
        self._start = list(start)
        self._end = list(end)
        self._ends = list(ends)
        self._budget = budget
        self._after = after
        self._direct = direct
        self._state: Literal["start", "thinking", "direct", "after"] = "start"
        self._num_matched = 0  # tokens of the mark before the reasoning
        self._is_direct_possible = True  # whether a direct answer starts with these, too
        self._thought: list[int] = []
        self._bridge = list(bridge)
        self._forced: list[int] = []
        self._then: Callable[[], None] = self._open  # called after all of them
        if is_open:
            self._open()
        elif must_think:
            self._force(self._start, self._open)

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow but an end token."""
        constraint = self._constraint
        return constraint is not None and constraint.is_over

    @property
    def _constraint(self) -> FormConstraint | None:
        """The constraint of the next token, ignoring the marks."""
        if self._state == "direct":
            return self._direct
        return self._after if self._state == "after" else None

    def mask(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits (vocabulary,) with -inf for tokens that are not allowed."""
        if self._forced:
            return _only(logits, self._forced[:1])
        if self._state == "thinking" and self._after is not None:
            held = logits.clone()
            held[self._ends] = -math.inf
            return held
        if self._state == "start" and self._direct is not None:
            token = self._start[self._num_matched]
            possible = self._is_direct_possible
            held = self._direct.mask(logits) if possible else _only(logits, [])
            held[token] = logits[token]
            return held
        constraint = self._constraint
        return logits if constraint is None else constraint.mask(logits)

    def advance(self, token: int) -> None:
        """Advances by the chosen token; raises the errors of FormConstraint.advance."""
        if self._forced:
            self._forced.pop(0)
            if not self._forced:
                self._then()
        elif self._state == "thinking":
            self._think(token)
        elif self._state == "start":
            self._begin(token)
        elif (constraint := self._constraint) is not None:
            constraint.advance(token)

    def _begin(self, token: int) -> None:
        """Advances by a token of the mark, of a direct answer, or of both."""
        direct = self._direct
        if token != self._start[self._num_matched]:
            self._state = "direct"
            if direct is not None:
                direct.advance(token)
            return
        self._num_matched += 1
        if self._num_matched == len(self._start):
            self._open()
        elif direct is not None and self._is_direct_possible:
            self._is_direct_possible = direct.allows(token)
            if self._is_direct_possible:
                direct.advance(token)

    def _open(self) -> None:
        self._state = "thinking"
        self._bound()

    def _think(self, token: int) -> None:
        self._thought.append(token)
        if self._thought[-len(self._end) :] == self._end:
            self._end_thinking()
        else:
            self._bound()

    def _bound(self) -> None:
        """Forces the end mark if the budget is spent."""
        if self._budget is not None and len(self._thought) >= self._budget:
            self._force(self._end, self._end_thinking)

    def _end_thinking(self) -> None:
        self._state = "after"
        if self._bridge:
            self._force(self._bridge, lambda: None)

    def _force(self, tokens: Sequence[int], then: Callable[[], None]) -> None:
        self._forced, self._then = list(tokens), then


def _only(logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """Returns logits with -inf for all but some tokens."""
    held = logits.new_full(logits.shape, -math.inf)
    held[list(tokens)] = logits[list(tokens)]
    return held
