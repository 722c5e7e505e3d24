"""LanguageModel: a loaded model that runs steps and has adapters, without transformers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npu_compiler.verification.result import Verdict
from npu_llm.choices import PipelineName
from npu_llm.errors import OptionError
from npu_llm.generation.adapters import AdaptedModel, Choice, parse_choice
from npu_llm.generation.entry_model import EntryModel
from npu_llm.kv_cache.cache import StepCache, run_step, step_inputs
from npu_llm.models.build import prepare
from npu_llm.models.entry import is_exported
from npu_llm.models.export import prepare_exported
from npu_llm.models.load import KernelPipeline, LoadedModel, LoadReport, Pipeline
from npu_llm.models.load_options import LoadOptions
from npu_llm.precision import kernels_cache
from npu_llm.structured_output import ConstraintMaker
from npu_llm.tokenizer.tokenizer import Tokenizer
from npu_runtime.errors import KindError

if TYPE_CHECKING:
    from npu_llm.kv_cache.blocks import BlockPool

__all__ = ["LanguageModel", "make_ready"]


def make_ready(name_or_path: str | Path, options: LoadOptions) -> LoadedModel[Pipeline]:
    """Prepares a model to run; raises the errors of NPUModelForCausalLM.from_pretrained."""
    path = Path(name_or_path).expanduser()
    if is_exported(path):
        return prepare_exported(path, options)
    return prepare(name_or_path, options)


class LanguageModel(EntryModel):
    """A model's programs, tokenizer and adapters.

    Attributes:
        precision: storage of the weights and dtype of the arithmetic.
        report: load times, and whether the model came from the cache.
    """

    def __init__(self, ready: LoadedModel[Pipeline]) -> None:
        super().__init__(ready.entry)
        self.report: LoadReport = ready.report
        self._pipeline = ready.programs
        self._device = torch.device("npu")
        self._adapters = AdaptedModel(ready.entry, ready.programs)

    @property
    def _is_stateful(self) -> bool:
        """Whether the cache cannot drop tokens, as assisted generation requires."""
        is_kept = self._entry.relocation is not None or bool(self._entry.states)
        return self.pipeline == "dynamic" and not is_kept

    @property
    def cache_kind(self) -> str:
        """A digest of weights, pipeline and layout, which a saved cache must match."""
        entry = self._entry
        layout = str(entry.static_layout)
        if self.pipeline == "kernels":
            # Imported late: only saving or restoring a session needs it.
            from npu_llm.kv_cache.blocks import block_layout

            stored = kernels_cache(entry.precision, entry.kv_cache)
            layout = block_layout(stored, entry.sparse_attention)
        kind = f"{entry.weights_digest} {self.pipeline} {layout} {entry.kv_cache}"
        chosen = entry.sparse_attention
        return kind if chosen is None else f"{kind} {chosen.top_k} {chosen.dense_up_to}"

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of the weights; int8 for int4, which torch does not have."""
        return self.precision.torch_dtype

    @property
    def pipeline(self) -> PipelineName:
        """The execution mode: "kernels", "dynamic" or "static"."""
        return self._pipeline.name

    @property
    def block_pool(self) -> BlockPool | None:
        """The block pool of a model that mixes rows of any sequences in a step; else None."""
        return self._pipeline.pool if isinstance(self._pipeline, KernelPipeline) else None

    @property
    def why_not_kernels(self) -> str | None:
        """The reason that the kernel pipeline was not used; None if it was not requested."""
        plain = self._adapters.plain_entry
        if self._entry is not plain and plain.pipeline == "kernels":
            return "adapters are in use, which only OpenVINO's programs support"
        return self._entry.why_not_kernels

    @property
    def verification(self) -> Verdict:
        """The result of comparing the programs loaded so far with torch."""
        return self._pipeline.verdict

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The model's tokenizer; does not use transformers if the saved files suffice.

        Once transformers' `tokenizer` attribute was used, this is the same object, including the
        user's changes.

        Raises:
            ModelError: [missing-tokenizer] if the model has no tokenizer.
        """
        used = self.__dict__.get("_tokenizer")
        if used is None:
            return self._saved_tokenizer
        return Tokenizer(self._entry.folder / "tokenizer", wrapped=used)

    @property
    def generation_defaults(self) -> dict[str, Any]:
        """The model's generation config: `generation_config` once it exists, else the saved one."""
        used = self.__dict__.get("generation_config")
        found: dict[str, Any] = self._saved_defaults if used is None else used.to_diff_dict()
        return found

    @cached_property
    def constraints(self) -> ConstraintMaker:
        """Creates constraints for structured output.

        Raises:
            ModelError: [missing-tokenizer].
            OptionError: [answer-form] for a model without an end token.
        """
        if not self.end_tokens:
            raise OptionError(
                "`form` must be omitted for a model without an end token, which ends such an "
                "answer, got one. Set generation_config.eos_token_id.",
                code="answer-form",
            )
        ends = sorted(self.end_tokens)
        return ConstraintMaker(self.text_tokenizer, vocabulary=self.vocabulary, ends=ends)

    def new_cache(self) -> StepCache:
        """Returns an empty cache, for `past_key_values` of forward and generate."""
        cache = self._pipeline.new_cache()
        cache.made_by = self._pipeline
        return cache

    def continues(self, cache: StepCache) -> bool:
        """Whether the cache was built with the active adapters. False for other types."""
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
            KindError: [argument-kind] for a cache that this model did not create.
        """
        if not isinstance(cache, StepCache):
            raise KindError(
                f"`cache` must come from new_cache(), got {type(cache).__name__}. Keep one for "
                "each sequence.",
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

    # Adapters

    def load_adapter(self, path: str | Path, name: str | None = None) -> str:
        """Loads a LoRA adapter saved by PEFT; activate it with set_adapter.

        The first adapter, and an adapter of further layers, compiles a program of the dynamic
        pipeline, or programs of the static one, with adapters as inputs. These programs are kept in
        the compile cache.

        Args:
            path: the adapter's folder.
            name: name for set_adapter; the folder's name by default.

        Returns:
            The name.

        Raises:
            ModelError: [adapter-unreadable], [adapter-kind] for an adapter that can only be merged,
                [adapter-base] for an adapter of another model.
            CaptureError: [adapter-module] for a layer that is not linear.
            OptionError: [adapter-source] if the model's own files are missing, [adapter-name] for a
                name that is in use.
        """
        return self._adapters.load(path, name)

    def set_adapter(
        self,
        adapters: Choice = None,
        *,
        scale: float = 1.0,
        rows: Sequence[Choice] | None = None,
    ) -> None:
        """Selects the adapters of later calls.

        The dynamic pipeline does not recompile. The static pipeline compiles programs when the
        total rank exceeds the next size: 16, 32, 64 and so on.

        Existing caches and sessions keep the adapters that they were created with; a session starts
        a new cache.

        Args:
            adapters: a name, several names, or a mapping from names to scales; None for the model
                without adapters.
            scale: factor for all scales.
            rows: a separate choice for each row of a batch, instead of `adapters`.

        Raises:
            OptionError: [adapter-name] for an adapter that was not loaded.
        """
        choices = [adapters] if rows is None else rows
        self._entry, self._pipeline = self._adapters.choose(
            [parse_choice(one, scale) for one in choices]
        )

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the loaded adapters."""
        return self._adapters.names
