"""rerank: documents by how well they answer a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from npu_llm.errors import ModelError
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from npu_llm.tasks.model import TaskModel

    _Base = TaskModel
else:
    _Base = object

__all__ = ["Ranked", "Reranks"]


@dataclass(frozen=True)
class Ranked:
    """A document and how well it answers.

    Attributes:
        index: its place among the documents that were given.
        score: the model's own, the higher the better; between 0 and 1 for a model of one class.
        document: its text.
    """

    index: int
    score: float
    document: str


class Reranks(_Base):
    """What a model needs to order documents."""

    @public_call
    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        batch_size: int = 32,
    ) -> list[Ranked]:
        """Orders documents by how well they answer a query.

        Args:
            query: what is asked.
            documents: texts; what the model does not take at their ends is cut.
            top_k: how many to return; by default all.
            batch_size: how many the program gets at once, at most.

        Returns:
            The best first; documents with equal scores in the order given.

        Raises:
            ModelError: [model-task] for a model of more than two classes, [missing-processor] for
                one without tokenizer.
        """
        labels = int(self.config.num_labels)
        if labels > 2:
            raise ModelError(
                f"{self.name}: reranking needs a model of one class, or of two, of which the "
                f"second says that a document answers; got {labels}. Use a cross-encoder.",
                code="model-task",
            )
        texts = list(documents)
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        scores = torch.empty(len(texts))
        for start in range(0, len(order), max(batch_size, 1)):
            rows = order[start : start + max(batch_size, 1)]
            given = self.tokenizer(
                [query] * len(rows), [texts[row] for row in rows], padding=True,
                truncation="longest_first", max_length=self.context_length, return_tensors="pt",
            )  # fmt: skip
            logits = self.forward(**given).logits
            found = logits[:, 0].sigmoid() if labels == 1 else logits.softmax(1)[:, 1]
            scores[torch.tensor(rows)] = found
        best = sorted(range(len(texts)), key=lambda index: -float(scores[index]))[:top_k]
        return [Ranked(index, float(scores[index]), texts[index]) for index in best]
