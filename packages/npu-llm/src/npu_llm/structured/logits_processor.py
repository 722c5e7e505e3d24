"""FormProcessor: holds the rows of a generation to a form, as transformers' generate calls it."""

from __future__ import annotations

import torch
from transformers import LogitsProcessor

from npu_llm.structured.form import Form
from npu_llm.structured.token_constraint import ConstraintMaker, TokenConstraint

__all__ = ["FormProcessor"]


class FormProcessor(LogitsProcessor):  # type: ignore[misc]
    """For one generation without beams, whose rows keep their places."""

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
