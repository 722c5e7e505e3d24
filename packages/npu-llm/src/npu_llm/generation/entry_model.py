"""EntryModel: metadata, tokenizer and limits of a model in a cache entry; does not need torch."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from npu_llm.choices import KvCache, PipelineName
from npu_llm.errors import ContextError, check_token_range, missing_tokenizer
from npu_llm.models.entry import Entry
from npu_llm.precision import Precision
from npu_llm.tokenizer.tokenizer import Tokenizer
from npu_ops.kernel_programs.sparse_attention import SparseAttention

if TYPE_CHECKING:
    from npu_compiler.verification.result import Verdict
    from npu_llm.kv_cache.blocks import BlockPool
    from npu_llm.models.load_report import LoadReport
    from npu_llm.structured_output import ConstraintMaker

__all__ = ["EntryModel"]


class EntryModel:
    """A model that an engine runs: its entry's metadata, and its caches.

    Attributes:
        precision: storage of the weights and dtype of the arithmetic.
        report: load times, and whether the model came from the cache.
    """

    report: LoadReport

    def __init__(self, entry: Entry) -> None:
        self.precision: Precision = entry.precision
        self._entry = entry

    @property
    def name(self) -> str:
        """The model's name."""
        return self._entry.name

    @property
    def kv_cache(self) -> KvCache | None:
        """The storage type of keys and values; None for the dtype of the arithmetic."""
        return self._entry.kv_cache

    @property
    def sparse_attention(self) -> SparseAttention | None:
        """The keys that tokens of a long sequence attend to; None for all."""
        return self._entry.sparse_attention

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens of prompt and answer; None if the model sets no limit."""
        return self._entry.context_length

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model has a tokenizer."""
        return self._entry.has_tokenizer

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The model's tokenizer; does not use transformers if the saved files suffice.

        Raises:
            ModelError: [missing-tokenizer] if the model has no tokenizer.
        """
        return self._saved_tokenizer

    @cached_property
    def _saved_tokenizer(self) -> Tokenizer:
        if not self.has_tokenizer:
            raise missing_tokenizer(self.name)
        return Tokenizer(
            self._entry.folder / "tokenizer",
            needs_transformers=not self._entry.has_fast_tokenizer,
            trust_remote_code=self._entry.trusts_code,
        )

    @property
    def generation_defaults(self) -> dict[str, Any]:
        """The model's generation config, as saved."""
        return self._saved_defaults

    @cached_property
    def _saved_defaults(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (self._entry.folder / "generation_config.json").read_text()
        )
        return found

    @property
    def end_tokens(self) -> frozenset[int]:
        """The model's end tokens."""
        ends = self.generation_defaults.get("eos_token_id")
        return frozenset([ends] if isinstance(ends, int) else ends or ())

    @property
    def entry(self) -> Entry:
        """The folder that the model was loaded from."""
        return self._entry

    @cached_property
    def vocabulary(self) -> int:
        """The vocabulary size; token ids are below it."""
        known = self._entry.vocabulary
        if known is not None:
            return known
        from npu_llm.checkpoint.saved import read_saved_config  # for entries of earlier versions

        config = read_saved_config(self._entry.folder)
        return int(config.get_text_config().vocab_size)

    @property
    def why_not_kernels(self) -> str | None:
        """The reason that the kernel pipeline was not used; None if it was not requested."""
        return self._entry.why_not_kernels

    @property
    @abstractmethod
    def pipeline(self) -> PipelineName:
        """The execution mode: "kernels", "dynamic" or "static"."""

    @property
    @abstractmethod
    def verification(self) -> Verdict:
        """The result of comparing the programs loaded so far with torch."""

    @property
    @abstractmethod
    def block_pool(self) -> BlockPool | None:
        """The block pool of a model that mixes rows of any sequences in a step; else None."""

    @property
    @abstractmethod
    def constraints(self) -> ConstraintMaker:
        """Creates constraints for structured output."""

    @abstractmethod
    def new_cache(self) -> Any:
        """Returns an empty cache for one generation."""

    @abstractmethod
    def continues(self, cache: Any) -> bool:
        """Whether a cache is valid for this model."""

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raises OptionError [token-range] for a token id outside the vocabulary."""
        check_token_range("input_ids", min(tokens), max(tokens), self.vocabulary)

    def check_context(self, length: int) -> None:
        """Raises ContextError [context-overflow] if `length` tokens do not fit into the context."""
        if self.context_length is not None and length > self.context_length:
            longest = self._entry.facts.long_context
            has_more = longest is not None and self._entry.max_context is None
            raise ContextError(
                f"{self._entry.name}: its context holds {self.context_length:,} tokens, got "
                f"{length:,}. Shorten the prompt, or request fewer new tokens"
                f"{f', or load it with max_context, at most {longest:,}' if has_more else ''}.",
                code="context-overflow",
            )
