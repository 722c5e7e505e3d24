"""One class for each task of one-step models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoModelForAudioClassification,
    AutoModelForCTC,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForObjectDetection,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoModelForZeroShotImageClassification,
)

from npu_llm.choices import POOLINGS
from npu_llm.errors import ContextError, ModelError, OptionError
from npu_llm.tasks.model import TaskModel
from npu_runtime.public_calls import public_call

__all__ = [
    "NPUModelForAudioClassification",
    "NPUModelForCTC",
    "NPUModelForFeatureExtraction",
    "NPUModelForImageClassification",
    "NPUModelForMaskedLM",
    "NPUModelForObjectDetection",
    "NPUModelForQuestionAnswering",
    "NPUModelForSequenceClassification",
    "NPUModelForTokenClassification",
    "NPUModelForZeroShotImageClassification",
    "Ranked",
]

_RECORDED = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
# Maximum difference in length among the texts of one call, as a share: padding costs as much as
# text, and a call some microseconds.
_MOST_PADDING = 0.12


class NPUModelForFeatureExtraction(TaskModel):
    """Embeddings of tokens and, by `encode`, of texts. Returns the output of AutoModel."""

    _auto = AutoModel

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
        """Returns the embeddings of texts.

        Args:
            texts: one text, or a sequence, which may be empty.
            pooling: "mean", "cls", "max" or "last"; by default the checkpoint's setting for
                sentence-transformers, or else "mean".
            normalize: whether embeddings have length 1, so that their dot product is the cosine; by
                default the checkpoint's setting.
            batch_size: maximum number of texts per call of the program. They are sorted by length
                first, so a batch has little padding.
            truncate: whether to truncate texts above the model's limit, as sentence-transformers
                does; False to raise.

        Returns:
            (texts, width) float32 on the host; (width,) for a single text.

        Raises:
            OptionError: [unknown-pooling], or [batch-size] for less than 1.
            ContextError: [context-overflow] for a text above the limit, with truncate=False.
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
        """Returns the embeddings of tokenized texts.

        Args:
            encoded: the tokens of each text, at least one, including the tokenizer's special
                tokens.
            pooling: see `encode`.
            normalize: see `encode`.
            batch_size: see `encode`.

        Returns:
            (texts, width) float32 on the host.

        Raises:
            OptionError: [unknown-pooling], [batch-size], or [token-range] for a token id outside
                the vocabulary.
            ContextError: [context-overflow] for a text above the limit.
        """
        if batch_size < 1:
            raise OptionError(
                f"`batch_size` must be at least 1, got {batch_size}. Omit it for the default.",
                code="batch-size",
            )
        limit = self.max_seq_length
        longest = max(map(len, encoded), default=0)
        if limit is not None and longest > limit:
            raise ContextError(
                f"`{self.name}` must be given texts of at most {limit:,} tokens, got {longest:,}. "
                "Shorten or split the text, or pass truncate=True.",
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
        """Whether embeddings have length 1 by default."""
        return self._recorded[1]

    @cached_property
    def _recorded(self) -> tuple[str, bool]:
        folder = self._entry.folder
        return read_pooling(folder), read_normalize(folder)

    @cached_property
    def max_seq_length(self) -> int | None:
        """Maximum number of input tokens: the checkpoint's setting, or the model's limit."""
        path = self._entry.folder / "sentence_bert_config.json"
        recorded = json.loads(path.read_text()).get("max_seq_length") if path.is_file() else None
        bounds = [bound for bound in (recorded, self.context_length) if bound is not None]
        return min(bounds) if bounds else None

    def tokens_of(self, texts: list[str], *, truncate: bool) -> list[list[int]]:
        """Returns the tokens of each text, truncated to the model's limit or whole."""
        if not texts:  # rejected by transformers' tokenizers
            return []
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


@dataclass(frozen=True)
class Ranked:
    """A document and its relevance.

    Attributes:
        index: its index among the given documents.
        score: the model's relevance score, higher is better; between 0 and 1 for a model of one
            class.
        document: its text.
    """

    index: int
    score: float
    document: str


class NPUModelForSequenceClassification(TaskModel):
    """Classes of texts and, by `rerank`, relevance scores of documents for a query."""

    _auto = AutoModelForSequenceClassification

    @public_call
    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        batch_size: int = 32,
    ) -> list[Ranked]:
        """Orders documents by relevance to a query.

        Args:
            query: the query.
            documents: texts, truncated at their ends to the model's limit.
            top_k: number of results; all by default.
            batch_size: maximum number of documents per call of the program.

        Returns:
            The best first; documents with equal scores in input order.

        Raises:
            ModelError: [model-task] for a model of more than two classes, [missing-processor] for a
                model without a tokenizer.
        """
        labels = int(self.config.num_labels)
        if labels > 2:
            raise ModelError(
                f"`{self.name}` must have one class, or two with relevance as the second, for "
                f"reranking, got {labels}. Use a cross-encoder.",
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


class NPUModelForTokenClassification(TaskModel):
    """Classes of tokens, such as names of persons and locations."""

    _auto = AutoModelForTokenClassification


class NPUModelForQuestionAnswering(TaskModel):
    """Positions in a text of the answer to a question."""

    _auto = AutoModelForQuestionAnswering


class NPUModelForMaskedLM(TaskModel):
    """Tokens that fill masked positions."""

    _auto = AutoModelForMaskedLM


class NPUModelForImageClassification(TaskModel):
    """Classes of images."""

    _auto = AutoModelForImageClassification
    input_modalities = ("image",)


class NPUModelForObjectDetection(TaskModel):
    """Classes and boxes of the objects in an image."""

    _auto = AutoModelForObjectDetection
    input_modalities = ("image",)


class NPUModelForZeroShotImageClassification(TaskModel):
    """Scores of texts as descriptions of images, as in CLIP and SigLIP."""

    _auto = AutoModelForZeroShotImageClassification
    input_modalities = ("text", "image")


class NPUModelForAudioClassification(TaskModel):
    """Classes of audio."""

    _auto = AutoModelForAudioClassification
    input_modalities = ("audio",)


class NPUModelForCTC(TaskModel):
    """Letters of speech per frame, as in wav2vec 2.0 and HuBERT."""

    _auto = AutoModelForCTC
    input_modalities = ("audio",)


def pool(tokens: torch.Tensor, mask: torch.Tensor, how: str) -> torch.Tensor:
    """Returns one embedding per text.

    Args:
        tokens: (batch, length, width) float32.
        mask: (batch, length), 1 for tokens and 0 for padding.
        how: one of POOLINGS: the mean of the tokens, the first token, the maximum of each channel,
            the last token.

    Returns:
        (batch, width) float32.

    Raises:
        OptionError: [unknown-pooling].
    """
    if how not in POOLINGS:
        raise OptionError(
            f"`pooling` must be one of {', '.join(POOLINGS)}, got {how!r}. Omit it for the "
            "checkpoint's setting.",
            code="unknown-pooling",
        )
    weights = mask.to(tokens.dtype)
    if how == "mean":
        total = torch.bmm(weights[:, None], tokens)[:, 0]
        return total / weights.sum(1, keepdim=True).clamp(min=1e-9)
    if how == "max":
        return tokens.masked_fill(mask[:, :, None] == 0, -torch.inf).amax(1)
    rows = torch.arange(len(tokens))
    if how == "cls":  # the first token that is not padding
        return tokens[rows, mask.argmax(1)]
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return tokens[rows, last]


def read_pooling(folder: Path) -> str:
    """Returns a checkpoint's pooling setting for sentence-transformers; "mean" if there is none.

    Raises:
        OptionError: [unknown-pooling] for an unsupported setting.
    """
    path = next(iter(sorted(folder.glob("*_Pooling/config.json"))), None)
    if path is None:
        return "mean"
    config = json.loads(path.read_text())
    named = config.get("pooling_mode")
    chosen = [named] if isinstance(named, str) else [
        key for key, value in config.items() if key.startswith("pooling_mode") and value is True
    ]  # fmt: skip
    found = [{"lasttoken": "last"}.get(key, _RECORDED.get(key, key)) for key in chosen]
    if len(found) != 1 or found[0] not in POOLINGS:
        raise OptionError(
            f"`{path}` must have a pooling of {', '.join(POOLINGS)}, got "
            f"{', '.join(found) or 'none'}. Pass pooling=.",
            code="unknown-pooling",
        )
    return found[0]


def read_normalize(folder: Path) -> bool:
    """Returns a checkpoint's normalization setting for sentence-transformers."""
    path = folder / "modules.json"
    if not path.is_file():
        return False
    return any(part["type"].endswith("Normalize") for part in json.loads(path.read_text()))


def _batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yields rows by decreasing length, so that the largest batch comes first."""
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
