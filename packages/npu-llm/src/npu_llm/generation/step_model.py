"""A model that runs steps: what NPUModelForCausalLM is without transformers."""

from __future__ import annotations

import importlib
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from npu_compiler.verification.verdict import Verdict
from npu_llm.choices import KvCache, PipelineName
from npu_llm.errors import ContextError
from npu_llm.kv_cache.cache import StepCache, run_step, step_inputs
from npu_llm.models.build import LoadReport
from npu_llm.models.entry import Entry
from npu_llm.models.runners import KernelPipeline, Pipeline
from npu_llm.precision import Precision, kernels_cache
from npu_ops.kernel_programs.sparse_attention import SparseAttention
from npu_runtime.errors import KindError

if TYPE_CHECKING:
    from npu_llm.kv_cache.blocks import BlockPool

__all__ = ["LightModel", "StepModel"]

_completing = threading.RLock()


class StepModel:
    """A model's programs, and what is known about it.

    Attributes:
        precision: how weights are stored and arithmetic is done.
        report: how this start went: times, and whether it came from the cache.
    """

    def __init__(
        self, entry: Entry, pipeline: Pipeline, precision: Precision, report: LoadReport
    ) -> None:
        self.precision = precision
        self.report = report
        self._entry = entry
        self._pipeline = pipeline
        self._device = torch.device("npu")

    @property
    def _is_stateful(self) -> bool:
        """Whether the cache cannot drop tokens, which assisted generation has to."""
        is_kept = self._entry.relocation is not None or bool(self._entry.states)
        return self.pipeline == "dynamic" and not is_kept

    @property
    def name(self) -> str:
        """The model's name."""
        return self._entry.name

    @property
    def cache_kind(self) -> str:
        """Which saved caches this model can load: those of equal weights, pipeline and layout."""
        entry = self._entry
        layout = str(entry.static_layout)
        if self.pipeline == "kernels":
            # Late: needed when a session is saved or restored.
            from npu_llm.kv_cache.blocks import block_layout

            stored = kernels_cache(entry.precision, entry.kv_cache)
            layout = block_layout(stored, entry.sparse_attention)
        kind = f"{entry.weights_digest} {self.pipeline} {layout} {entry.kv_cache}"
        chosen = entry.sparse_attention
        return kind if chosen is None else f"{kind} {chosen.top_k} {chosen.dense_up_to}"

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of the weights; for int4 it is int8, the nearest that torch has."""
        return self.precision.torch_dtype

    @property
    def pipeline(self) -> PipelineName:
        """How its steps run: "kernels", "dynamic" or "static"."""
        return self._pipeline.name

    @property
    def block_pool(self) -> BlockPool | None:
        """The blocks of a model whose steps take rows of any sequences; None for other models."""
        return self._pipeline.pool if isinstance(self._pipeline, KernelPipeline) else None

    @property
    def why_not_kernels(self) -> str | None:
        """Why it is not a kernel program where that would have been chosen; None otherwise."""
        return self._entry.why_not_kernels

    @property
    def verification(self) -> Verdict:
        """The outcome of comparing the programs loaded so far with torch."""
        return self._pipeline.verdict

    @property
    def kv_cache(self) -> KvCache | None:
        """What keys and values are stored as; None for the dtype of the arithmetic."""
        return self._entry.kv_cache

    @property
    def sparse_attention(self) -> SparseAttention | None:
        """Which keys a token of a long sequence attends to; None for all."""
        return self._entry.sparse_attention

    @property
    def context_length(self) -> int | None:
        """How many tokens prompt and answer may have together; None if the model sets no limit."""
        return self._entry.context_length

    @property
    def has_tokenizer(self) -> bool:
        """Whether a tokenizer came with the model."""
        return self._entry.has_tokenizer

    @property
    def entry(self) -> Entry:
        """The folder that it was started from."""
        return self._entry

    @cached_property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        known = self._entry.vocabulary
        if known is not None:
            return known
        from transformers import AutoConfig  # for entries of former versions

        config = AutoConfig.from_pretrained(self._entry.folder)
        return int(config.get_text_config().vocab_size)

    def new_cache(self) -> StepCache:
        """An empty cache, for `past_key_values` of forward and generate."""
        cache = self._pipeline.new_cache()
        cache.made_by = self._pipeline
        return cache

    def continues(self, cache: StepCache) -> bool:
        """Whether a cache holds what the adapters in use make of its tokens; another thing, no."""
        return getattr(cache, "made_by", None) is self._pipeline

    def step(
        self,
        input_ids: torch.Tensor,
        cache: StepCache,
        *,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
    ) -> torch.Tensor:
        """Runs a step; see NPUModelForCausalLM.forward.

        Returns:
            logits (batch, kept, vocabulary) float32 on the device of input_ids.

        Raises:
            KindError: [argument-kind] for a cache that no model made.
        """
        if not isinstance(cache, StepCache):
            raise KindError(
                f"cache: must be what new_cache() returned; got {type(cache).__name__}. Keep one "
                "for each sequence.",
                code="argument-kind",
            )
        past = cache.get_seq_length()
        values = step_inputs(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            logits_to_keep=logits_to_keep,
            past=past,
            vocabulary=self.vocabulary,
        )
        self.check_context(past + input_ids.shape[1])
        return run_step(cache, values, past=past, device=input_ids.device.type)

    def check_context(self, length: int) -> None:
        """Raises ContextError [context-overflow] if so many tokens do not fit."""
        if self.context_length is not None and length > self.context_length:
            raise ContextError(
                f"{self._entry.name}: its context holds {self.context_length:,} tokens; got "
                f"{length:,}. Shorten the prompt, or ask for fewer new tokens.",
                code="context-overflow",
            )


class LightModel(StepModel):
    """A model that becomes an NPUModelForCausalLM at the first use of what only that has.

    transformers takes longer to import than a model takes to start from the cache.
    """

    def __getattr__(self, name: str) -> Any:
        # Only called for what StepModel does not have.
        if name.startswith("__") or type(self) is not LightModel:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.become_full()
        return getattr(self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See NPUModelForCausalLM.forward."""
        self.become_full()
        return self(*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # isinstance(model, NPUModelForCausalLM) is asked by who has imported transformers.
        return _full_class()

    def become_full(self) -> None:
        """Makes it an NPUModelForCausalLM."""
        with _completing:
            if type(self) is LightModel:
                full = _full_class()
                full.complete(self)
                object.__dict__["__class__"].__set__(self, full)


def _full_class() -> Any:
    return importlib.import_module("npu_llm.generation.model").NPUModelForCausalLM
