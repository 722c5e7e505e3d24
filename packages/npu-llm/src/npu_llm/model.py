"""NPUModelForCausalLM: a language model as one program, which generates as transformers does.

How a model becomes a program is npu_llm.build's work; this module runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from npu_llm.build import LoadReport, prepare
from npu_llm.entry import Entry
from npu_llm.errors import ContextError, OptionError
from npu_llm.precision import Precision, parse_precision
from npu_llm.progress import ProgressListener
from npu_llm.session_cache import SessionCache
from npu_llm.step_inputs import step_inputs
from npu_runtime import Program, observe

__all__ = ["NPUModelForCausalLM"]


class NPUModelForCausalLM(GenerationMixin):  # type: ignore[misc]
    """A decoder-only language model, compiled for the npu device.

    Made by `from_pretrained`. `generate` is transformers' own: greedy, sampling, beams, streamers,
    stop strings, logits processors, batches with left padding. Keys and values stay inside the
    program, one session per generation.

    Attributes:
        config: the transformers config.
        generation_config: the defaults of generate.
        precision: how weights are stored and arithmetic is done.
        report: how this start went: from the cache or not, times.
    """

    main_input_name = "input_ids"
    input_modalities = ("text",)
    base_model_prefix = ""
    _is_stateful = True

    def __init__(
        self, entry: Entry, program: Program, precision: Precision, report: LoadReport
    ) -> None:
        self.config = AutoConfig.from_pretrained(entry.folder)
        self.generation_config = GenerationConfig.from_pretrained(entry.folder)
        self.precision = precision
        self.report = report
        self._entry = entry
        self._program = program
        self._device = torch.device("npu")
        self._vocabulary = int(self.config.get_text_config().vocab_size)
        self._inputs = tuple(port.name for port in program.inputs)
        self._tokenizer: Any = None

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        cache_dir: str | Path | None = None,
        gguf_file: str | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        token: str | bool | None = None,
        on_progress: ProgressListener | None = None,
    ) -> NPUModelForCausalLM:
        """Loads a model, from the compile cache where this start is not the first.

        Args:
            pretrained_model_name_or_path: a checkpoint folder of transformers, a GGUF file, or a
                name on the hub.
            dtype: "float32", "bfloat16", "float16", "int8", "int4", or a torch dtype; the default
                is bfloat16.
            device: None or "npu".
            cache_dir: where compiled models are kept; see npu_llm.config for the default.
            gguf_file: which GGUF file of a folder.
            trust_remote_code: whether model code inside the checkpoint may run.
            revision: which revision, for a name on the hub.
            token: access token, for a name on the hub.
            on_progress: called with a stage and the share of it that is done.

        Raises:
            ModelError: when there is no such model, or its files are damaged.
            OptionError: for an unknown dtype or another device.
            CaptureError: when the architecture cannot run here.
            npu_runtime.errors.DeviceError: when the device asked for by NPU_DEVICE is absent.
        """
        precision = parse_precision(dtype)
        if device is not None and torch.device(device).type != "npu":
            raise OptionError(
                f"device: the model runs on npu; got {device!r}. Leave it away, and choose what "
                "serves as npu with the variable NPU_DEVICE.",
                code="other-device",
            )
        hub = {"revision": revision, "token": token}
        entry, program, report = prepare(
            pretrained_model_name_or_path,
            precision=precision,
            cache_dir=None if cache_dir is None else Path(cache_dir),
            gguf_file=gguf_file,
            trust_remote_code=trust_remote_code,
            hub={key: value for key, value in hub.items() if value is not None},
            on_progress=on_progress,
        )
        return cls(entry, program, precision, report)

    # What transformers asks a model for

    @property
    def device(self) -> torch.device:
        """torch.device("npu")."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of the weights; int4 says int8, torch's nearest."""
        return self.precision.torch_dtype

    @property
    def tokenizer(self) -> Any | None:
        """The tokenizer that came with the model; None when there was none."""
        if self._tokenizer is None and self._entry.has_tokenizer:
            self._tokenizer = AutoTokenizer.from_pretrained(self._entry.folder / "tokenizer")
        return self._tokenizer

    @property
    def context_length(self) -> int | None:
        """Tokens that prompt and answer may have together; None where the model sets no bound."""
        return self._entry.context_length

    def can_generate(self) -> bool:
        """True."""
        return True

    def is_remote_code(self) -> bool:
        """False: the program holds the model's code already."""
        return False

    def get_experts_implementation(self) -> Mapping[str, str]:
        """Empty: how experts run was settled when the model was captured."""
        return {}

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *_: Any, **__: Any
    ) -> None:
        """Makes the cache of a generation; the kinds that transformers has do not serve here."""
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache:
            model_kwargs["past_key_values"] = SessionCache(self._program.session())

    # Running

    def __call__(self, *args: Any, **kwargs: Any) -> CausalLMOutputWithPast:
        """The same as forward."""
        return self.forward(*args, **kwargs)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: SessionCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Runs one step.

        Args:
            input_ids: (batch, tokens) int64, on npu or cpu; only the tokens that are new when
                past_key_values is given.
            attention_mask: (batch, past + tokens), 0 for padding; all ones by default.
            position_ids: (batch, tokens) int64; counted from the mask by default.
            past_key_values: the cache that a former step returned.
            use_cache: whether to return a cache; True by default.
            logits_to_keep: how many of the last tokens' logits are wanted, 0 for all; or a vector
                of indices.
            kwargs: what else generate passes; output_attentions and output_hidden_states are
                refused.

        Returns:
            logits (batch, kept, vocabulary) float32 on the device of input_ids, and the cache.

        Raises:
            ContextError: [context-overflow] when the tokens do not fit into the context.
            OptionError: [no-inner-states] when attentions or hidden states are asked for,
                [foreign-cache] for a cache that this class did not make, [cache-rows] for a batch
                that does not continue the cache's; see also npu_llm.step_inputs.
        """
        self._check(kwargs, past_key_values)
        cache = past_key_values
        if cache is None:
            cache = SessionCache(self._program.session())
        past = cache.get_seq_length()
        values = step_inputs(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            logits_to_keep=logits_to_keep,
            past=past,
            vocabulary=self._vocabulary,
        )
        batch, tokens = input_ids.shape
        self._check_context(past + tokens)
        values["beam_idx"] = cache.next_rows(batch)
        phase = "decode" if past else "prefill"
        with observe.span(phase, f"{phase} {tokens} tokens", batch=batch, tokens=tokens, past=past):
            (logits,) = cache.session.run(
                [values[name] for name in self._inputs], output_device=input_ids.device.type
            )
        cache.advance(batch, tokens)
        return CausalLMOutputWithPast(
            logits=logits, past_key_values=cache if use_cache is not False else None
        )

    def _check(self, kwargs: Mapping[str, Any], cache: Any) -> None:
        for name in ("output_attentions", "output_hidden_states"):
            if kwargs.get(name):
                raise OptionError(
                    f"{name}: a compiled model gives logits only; got True. Leave it away.",
                    code="no-inner-states",
                )
        if cache is not None and not isinstance(cache, SessionCache):
            raise OptionError(
                "past_key_values: must be the cache that this model returned; got a "
                f"{type(cache).__name__}. Leave it away for a new one.",
                code="foreign-cache",
            )

    def _check_context(self, length: int) -> None:
        if self.context_length is not None and length > self.context_length:
            raise ContextError(
                f"{self._entry.name}: its context holds {self.context_length:,} tokens; got "
                f"{length:,}. Shorten the prompt, or ask for fewer new tokens.",
                code="context-overflow",
            )

    def _prepare_generated_length(self, *args: Any, **kwargs: Any) -> GenerationConfig:
        """Has an answer end where the context ends, rather than fail there."""
        generation_config = super()._prepare_generated_length(*args, **kwargs)
        length = kwargs["input_ids_length"]
        self._check_context(length)
        if self.context_length is not None and generation_config.max_length is not None:
            bound = max(self.context_length, length + 1)
            generation_config.max_length = min(generation_config.max_length, bound)
        return generation_config
