"""NPUModelForCausalLM: a decoder-only language model with transformers' interface."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from npu_llm.cache_names import CACHE, one_cache, rename_cache
from npu_llm.checkpoint.saved import load_saved_tokenizer, read_saved_config
from npu_llm.decoding import can_decode, decode
from npu_llm.errors import OptionError
from npu_llm.generation.engine_answers import answer_by_engine
from npu_llm.generation.language_model import LanguageModel, make_ready
from npu_llm.kv_cache.cache import StepCache, check_prompt, join_transformers
from npu_llm.models.load import LoadedModel, Pipeline
from npu_llm.models.load_options import LoadOptions, dtype_in
from npu_llm.older_transformers import allow_host_tokens
from npu_llm.progress import ProgressListener
from npu_llm.structured_output import FormProcessor, given_form
from npu_ops.kernel_programs.sparse_attention import SparseAttention
from npu_runtime.public_calls import public_call

__all__ = ["NPUModelForCausalLM"]

# Search methods that reorder rows or drop tokens.
_WITHOUT_FORM = ("num_beams", "assistant_model", "prompt_lookup_num_tokens")

join_transformers()


@dataclass(frozen=True)
class _Assisted:
    """The state of a running assisted generation.

    Attributes:
        device: device of its tokens.
        continued: the cache with its first tokens; None for a new one.
    """

    device: torch.device
    continued: StepCache | None


# Per thread; the assistant's nested generation sees it as well.
_assisted: ContextVar[_Assisted | None] = ContextVar("assisted", default=None)


class NPUModelForCausalLM(LanguageModel, GenerationMixin):  # type: ignore[misc]
    """A decoder-only language model, compiled for the npu device.

    Created by `from_pretrained`. `generate` is that of transformers: greedy search, sampling, beam
    search, streamers, stop strings, logits processors, batches with left padding.

    Attributes:
        config: the transformers config.
        generation_config: default options of generate.
        precision: storage of the weights and dtype of the arithmetic.
        report: load times, and whether the model came from the cache.
    """

    main_input_name = "input_ids"
    input_modalities = ("text",)
    base_model_prefix = ""

    def __init__(self, ready: LoadedModel[Pipeline]) -> None:
        super().__init__(ready)
        self._complete()

    @classmethod
    def sharing(cls, model: LanguageModel) -> NPUModelForCausalLM:
        """Returns a model with transformers' interface that shares the given model's state."""
        full = cls.__new__(cls)
        full.__dict__ = model.__dict__
        if "config" not in full.__dict__:
            full._complete()
        return full

    def _complete(self) -> None:
        """Adds the attributes that transformers' generate needs to a LanguageModel."""
        self.config = read_saved_config(self._entry.folder)
        self.generation_config = GenerationConfig.from_pretrained(self._entry.folder)
        self._tokenizer: Any = None

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        config: Any = None,
        *,
        dtype: str | torch.dtype | None = None,
        max_context: int | None = None,
        pipeline: str | None = None,
        kv_cache: str | None = None,
        sparse_attention: int | SparseAttention | None = None,
        verify: str = "first",
        device: str | torch.device | None = None,
        cache_dir: str | Path | None = None,
        gguf_file: str | None = None,
        trust_remote_code: bool = False,
        ignore_unexpected: bool = False,
        revision: str | None = None,
        token: str | bool | None = None,
        on_progress: ProgressListener | None = None,
    ) -> NPUModelForCausalLM:
        """Loads a model, from the compile cache except on the first load.

        Args:
            pretrained_model_name_or_path: a transformers checkpoint folder, a GGUF file, a folder
                that `npu_llm.export` wrote, or a name on the Hugging Face hub.
            config: a CompilerConfig (only its dtype is used), for programs written for
                intel-npu-acceleration-library; by default `dtype` is used.
            dtype: "file" to keep the weights' types in the model's files, "float32", "bfloat16",
                "float16", "int8", "int4", or a torch dtype. The default is "file" for GGUF files
                and quantized checkpoints, bfloat16 for others, int8 on an NPU, and the precision of
                an exported folder.
            max_context: maximum number of tokens of prompt and answer together; the model's own
                limit by default. Smaller values need less memory.
            pipeline: "kernels" for our own CPU kernels, "dynamic" for one OpenVINO program with
                dynamic shapes, "static" for programs of fixed sizes, which NPUs need; by default
                chosen by device and model.
            kv_cache: "u8" to store keys and values in 8 bits, with one scale per token and head, in
                the dynamic pipeline; by default the dtype of the arithmetic.
            sparse_attention: in the kernel pipeline, the number of positions that a new token of a
                longer sequence attends to, a multiple of 16 such as 2048. This approximates long
                contexts; see npu_ops.kernel_programs.sparse_attention.SparseAttention, which is
                accepted too. All positions by default.
            verify: "first" to compare each program with torch before its first use; "always" to
                compare at each load; "off" to skip the comparison.
            device: None or "npu".
            cache_dir: directory of the compile cache; see npu_llm.config for the default.
            gguf_file: file name of the GGUF file in a folder.
            trust_remote_code: whether to run model code from the checkpoint.
            ignore_unexpected: whether to ignore tensors that the model does not use.
            revision: revision of the model on the hub.
            token: access token for the hub.
            on_progress: called with a stage and its share done, 0.0 to 1.0.

        Raises:
            ModelError: if the model does not exist, or its files are damaged.
            MemoryNeedError: if it does not fit into memory.
            CacheError: if it does not fit into the cache.
            OptionError: [pretrained-config]; for an unknown dtype, a dtype that differs from an
                exported folder's, another device, a max_context above the model's limit, or a
                kv_cache or sparse_attention that the pipeline or the model does not support.
            CaptureError: if the architecture is not supported.
            npu_compiler.errors.WrongResultError: if a program's results differ from torch's.
            npu_runtime.errors.DeviceError: if the device in NPU_DEVICE is absent.
        """
        options = LoadOptions(
            dtype=dtype_in(config, dtype),
            max_context=max_context,
            pipeline=pipeline,
            kv_cache=kv_cache,
            sparse_attention=sparse_attention,
            verify=verify,
            device=device,
            cache_dir=cache_dir,
            gguf_file=gguf_file,
            trust_remote_code=trust_remote_code,
            ignore_unexpected=ignore_unexpected,
            revision=revision,
            token=token,
            on_progress=on_progress,
        )
        return cls(make_ready(pretrained_model_name_or_path, options))

    # Required by transformers

    @property
    def device(self) -> torch.device:
        """torch.device("npu"); during assisted generation, the device of the tokens."""
        assisted = _assisted.get()
        return self._device if assisted is None else assisted.device

    @property
    def tokenizer(self) -> Any | None:
        """The model's tokenizer; None if it has none."""
        if self._tokenizer is None and self._entry.has_tokenizer:
            self._tokenizer = load_saved_tokenizer(
                self._entry.folder / "tokenizer", trust_remote_code=self._entry.trusts_code
            )
        return self._tokenizer

    def can_generate(self) -> bool:
        """True."""
        return True

    def is_remote_code(self) -> bool:
        """False: the program already contains the model's code."""
        return False

    def get_experts_implementation(self) -> Mapping[str, str]:
        """Returns {}: the implementation of experts was fixed when the model was traced."""
        return {}

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *_: Any, **__: Any
    ) -> None:
        """Creates the cache for a generation; transformers' cache classes are not supported."""
        if model_kwargs.get(CACHE) is None and generation_config.use_cache:
            model_kwargs[CACHE] = self.new_cache()

    def _assisted_decoding(
        self, input_ids: torch.Tensor, *args: Any, generation_config: Any, **kwargs: Any
    ) -> Any:
        """Keeps tokens and draft tokens on one device, and records the cache that is continued.

        transformers moves draft tokens to the model's device and compares them with tokens that may
        be elsewhere; a step accepts inputs on any device. Its first step also passes all tokens,
        including those already in the cache.
        """
        mask, cache = kwargs.get("attention_mask"), kwargs.get(CACHE)
        known = getattr(generation_config, "_mask_length", -1)  # of an all-ones mask
        length = known if mask is None else mask.shape[1]
        is_whole = length == input_ids.shape[1]
        token = _assisted.set(_Assisted(input_ids.device, cache if is_whole else None))
        try:
            return super()._assisted_decoding(
                input_ids, *args, generation_config=generation_config, **kwargs
            )
        finally:
            _assisted.reset(token)

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        next_sequence_length: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Returns the arguments of a step; see transformers' GenerationMixin."""
        assisted = _assisted.get()
        cache: Any = kwargs.get(CACHE)
        is_continued = assisted is not None and cache is not None and cache is assisted.continued
        if next_sequence_length is None and is_continued:
            next_sequence_length = input_ids.shape[1] - cache.get_seq_length()
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids, next_sequence_length=next_sequence_length, **kwargs
        )
        return inputs

    def _sample(
        self,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: Any | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Runs greedy search and sampling in our own loop if it supports the options."""
        if synced_gpus or not can_decode(input_ids, generation_config, model_kwargs):
            return super()._sample(
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                synced_gpus,
                streamer,
                **model_kwargs,
            )

        cache = model_kwargs[CACHE]

        def first(
            ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor | None
        ) -> torch.Tensor:
            logits: torch.Tensor = self.forward(
                ids, attention_mask, position_ids, cache, logits_to_keep=1
            ).logits
            return logits.cpu()

        return decode(
            first,
            input_ids,
            cache=cache,
            attention_mask=model_kwargs.get("attention_mask"),
            position_ids=model_kwargs.get("position_ids"),
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            config=generation_config,
            streamer=streamer,
        )

    # Running

    @public_call
    def generate(
        self,
        inputs: Any = None,  # checked like input_ids, with the same errors
        generation_config: GenerationConfig | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Generates with the arguments and results of transformers' `generate`.

        One additional argument selects structured output. It needs `npu-llm[structured]`, the
        model's tokenizer, and greedy search or sampling:

        - schema: a JSON schema, as a mapping;
        - regex: a regular expression, without look-around;
        - grammar: a grammar in llguidance's notation, which is Lark's.

        Raises:
            OptionError: [step-shape], [step-dtype] for invalid tokens or an invalid mask,
                [generate-option] for an option that transformers does not have, [answer-form],
                [missing-llguidance] for structured output that cannot be enforced, and the errors
                of forward.
        """
        cache = rename_cache(kwargs)
        self._check({}, cache)
        prompt = kwargs.get("input_ids") if inputs is None else inputs
        check_prompt(prompt, kwargs.get("attention_mask"), past=_length_of(cache))
        if prompt is not None and cache is None and generation_config is None and not args:
            answer = answer_by_engine(self, prompt, kwargs)
            if answer is not None:
                return answer
        self._hold_to_form(kwargs)
        with allow_host_tokens():
            return super().generate(inputs, generation_config, *args, **kwargs)

    def _hold_to_form(self, options: dict[str, Any]) -> None:
        """Replaces schema, regex or grammar by a logits processor."""
        form = given_form(options)
        if form is None:
            return
        unfit = [name for name in _WITHOUT_FORM if options.get(name) not in (None, 1)]
        if unfit:
            raise OptionError(
                f"`form` must be used with greedy search or sampling, got {unfit[0]} too. Omit "
                "one.",
                code="answer-form",
            )
        given = options.get("logits_processor") or ()
        options["logits_processor"] = [*given, FormProcessor(self.constraints, form)]

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        try:
            super()._validate_model_kwargs(model_kwargs)
        except ValueError as error:
            raise OptionError(
                "generate: options must be arguments of transformers' generate or of forward, "
                f"got others: {error}. Check their spelling.",
                code="generate-option",
            ) from error

    def __call__(self, *args: Any, **kwargs: Any) -> CausalLMOutputWithPast:
        """The same as forward."""
        return self.forward(*args, **kwargs)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: StepCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        cache: StepCache | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Runs one step.

        Args:
            input_ids: (batch, tokens) int64, on npu or cpu; only the new tokens when
                past_key_values is given.
            attention_mask: (batch, past + tokens), 0 for padding; all ones by default.
            position_ids: (batch, tokens) int64; derived from the mask by default.
            past_key_values: the cache from an earlier step.
            use_cache: whether to return a cache; True by default.
            logits_to_keep: number of tokens, counted from the end, to return logits for; 0 for all;
                or a vector of indices.
            cache: past_key_values under its name since transformers 5.24.
            kwargs: other arguments that generate passes; output_attentions and output_hidden_states
                are rejected.

        Returns:
            logits (batch, kept, vocabulary) float32 on the device of input_ids, and the cache.

        Raises:
            ContextError: [context-overflow] if the tokens do not fit into the context.
            OptionError: [no-inner-states] if attentions or hidden states are requested,
                [foreign-cache] for a cache of another class, [cache-rows] for a batch that does not
                match the cache's rows, [two-caches] for two different caches; see also
                npu_llm.kv_cache.cache.
        """
        cache = one_cache(cache, past_key_values)
        self._check(kwargs, cache)
        if cache is None:
            cache = self.new_cache()
        logits = self.step(
            input_ids,
            cache,
            attention_mask=attention_mask,
            position_ids=position_ids,
            logits_to_keep=logits_to_keep,
        )
        return CausalLMOutputWithPast(
            logits=logits, **{CACHE: cache if use_cache is not False else None}
        )

    def _check(self, kwargs: Mapping[str, Any], cache: Any) -> None:
        for name in ("output_attentions", "output_hidden_states"):
            if kwargs.get(name):
                raise OptionError(
                    f"`{name}` must be omitted, since a compiled model returns only logits, got "
                    "True. Omit it.",
                    code="no-inner-states",
                )
        if cache is not None and not isinstance(cache, StepCache):
            raise OptionError(
                "`past_key_values` must be a cache that this model returned, got a "
                f"{type(cache).__name__}. Omit it for a new one.",
                code="foreign-cache",
            )

    def _prepare_generated_length(self, *args: Any, **kwargs: Any) -> GenerationConfig:
        """Ends an answer at the end of the context instead of raising there."""
        generation_config = super()._prepare_generated_length(*args, **kwargs)
        length = kwargs["input_ids_length"]
        self.check_context(length)
        if self.context_length is not None and generation_config.max_length is not None:
            bound = max(self.context_length, length + 1)
            generation_config.max_length = min(generation_config.max_length, bound)
        return generation_config


def _length_of(cache: StepCache | None) -> int:
    return 0 if cache is None else cache.get_seq_length()
