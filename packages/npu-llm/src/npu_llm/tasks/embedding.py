"""encode: texts to vectors, in batches of texts of like length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from npu_llm.errors import ContextError, OptionError
from npu_llm.tasks.pooling import pool, read_normalize, read_pooling
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from npu_llm.tasks.model import TaskModel

    _Base = TaskModel
else:
    _Base = object

__all__ = ["Embeds"]

# Texts of one call of the program differ by at most this share in length: padding costs as much
# as text, and a call some microseconds.
_MOST_PADDING = 0.12


class Embeds(_Base):
    """What a model needs to make vectors of texts."""

    @public_call
    def encode(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        batch_size: int = 64,
        truncate: bool = True,
    ) -> torch.Tensor:
        """Returns the vectors of texts.

        Args:
            texts: one or more.
            pooling: "mean", "cls", "max" or "last"; by default as the checkpoint records for
                sentence-transformers, or else the mean.
            normalize: whether vectors have length 1, so that their dot product is the cosine; by
                default as the checkpoint records.
            batch_size: how many texts the program gets at once, at most. They are sorted by
                length first, so a batch has little padding.
            truncate: cut texts that are longer than the model takes, as sentence-transformers
                does; False for an error.

        Returns:
            (texts, width) float32 on the host; (width,) for a single text.

        Raises:
            OptionError: [unknown-pooling], or [batch-size] for less than 1.
            ContextError: [context-overflow] for a text that is too long, with truncate=False.
            ModelError: [missing-processor] for a model without tokenizer.
        """
        many = [texts] if isinstance(texts, str) else list(texts)
        vectors = self.encode_tokens(
            self.tokens_of(many, truncate=truncate),
            pooling=pooling, normalize=normalize, batch_size=batch_size,
        )  # fmt: skip
        return vectors[0] if isinstance(texts, str) else vectors

    def encode_tokens(
        self,
        encoded: Sequence[list[int]],
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        batch_size: int = 64,
    ) -> torch.Tensor:
        """Returns the vectors of texts that are tokens already.

        Args:
            encoded: the tokens of each text, at least one, with those that the tokenizer puts
                around a text.
            pooling: as in `encode`, as are the others.
            normalize: as in `encode`.
            batch_size: as in `encode`.

        Returns:
            (texts, width) float32 on the host.

        Raises:
            OptionError: [unknown-pooling], [batch-size], or [token-range] for a token that the
                model does not have.
            ContextError: [context-overflow] for a text that is too long.
        """
        if batch_size < 1:
            raise OptionError(
                f"batch_size: must be at least 1; got {batch_size}. Omit it for the default.",
                code="batch-size",
            )
        limit = self.max_seq_length
        longest = max(map(len, encoded), default=0)
        if limit is not None and longest > limit:
            raise ContextError(
                f"{self.name}: it takes texts of {limit:,} tokens; got {longest:,}. Shorten or "
                "split the text, or pass truncate=True.",
                code="context-overflow",
            )
        how = self._recorded[0] if pooling is None else pooling
        unit = self._recorded[1] if normalize is None else normalize
        width = int(self.config.get_text_config().hidden_size)
        vectors = torch.empty((len(encoded), width))
        for rows in _batches([len(ids) for ids in encoded], batch_size):
            found = self._run([encoded[row] for row in rows], how)
            if found.shape[1] != vectors.shape[1]:
                vectors = vectors.new_empty((len(encoded), found.shape[1]))
            vectors[torch.tensor(rows)] = found
        return torch.nn.functional.normalize(vectors) if unit else vectors

    @property
    def is_normalized(self) -> bool:
        """Whether vectors have length 1 unless asked otherwise."""
        return self._recorded[1]

    @cached_property
    def _recorded(self) -> tuple[str, bool]:
        folder = self._entry.folder
        return read_pooling(folder), read_normalize(folder)

    @cached_property
    def max_seq_length(self) -> int | None:
        """How many tokens of a text are read: what the checkpoint records, or the model takes."""
        path = self._entry.folder / "sentence_bert_config.json"
        recorded = json.loads(path.read_text()).get("max_seq_length") if path.is_file() else None
        bounds = [bound for bound in (recorded, self.context_length) if bound is not None]
        return min(bounds) if bounds else None

    def tokens_of(self, texts: list[str], *, truncate: bool) -> list[list[int]]:
        """Returns the tokens of each text, cut to what the model takes or whole."""
        limit = self.max_seq_length if truncate else None
        found: Any = self.tokenizer(
            texts, truncation=limit is not None, max_length=limit,
            return_attention_mask=False, return_token_type_ids=False,
        )  # fmt: skip
        return list(found["input_ids"])

    def _run(self, ids: list[list[int]], how: str) -> torch.Tensor:
        longest = max(map(len, ids))
        padding = self.tokenizer.pad_token_id or 0
        table = torch.tensor([row + [padding] * (longest - len(row)) for row in ids])
        lengths = torch.tensor([len(row) for row in ids])
        mask = (torch.arange(longest) < lengths[:, None]).long()
        result = self.forward(input_ids=table, attention_mask=mask)
        return pool(result[0], mask, how)


def _batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yields rows by falling length, so that what fills the memory most comes first."""
    rows = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batch: list[int] = []
    real = 0
    for row in rows:
        longest = lengths[batch[0]] if batch else lengths[row]
        size = longest * (len(batch) + 1)
        if batch and (len(batch) == most or real + lengths[row] < (1 - _MOST_PADDING) * size):
            yield batch
            batch, real = [], 0
        batch.append(row)
        real += lengths[row]
    if batch:
        yield batch
