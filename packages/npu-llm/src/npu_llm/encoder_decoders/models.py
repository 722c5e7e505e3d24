"""NPUModelForSeq2SeqLM and NPUModelForSpeechSeq2Seq: models with an encoder and a decoder."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from npu_compiler.verification.verdict import Verdict
from npu_llm.cache_names import CACHE, rename_cache
from npu_llm.encoder_decoders.cross_cache import CrossCache
from npu_llm.encoder_decoders.inputs import check_encoder_inputs, check_tokens
from npu_llm.encoder_decoders.loading import Ready, export_parts, make_parts_ready
from npu_llm.encoder_decoders.skeleton import make_skeleton
from npu_llm.entries.build import LoadReport
from npu_llm.entries.load_options import LoadOptions
from npu_llm.errors import OptionError
from npu_llm.precision import Precision
from npu_llm.progress import ProgressListener
from npu_llm.steps.step_cache import join_transformers
from npu_runtime.public_calls import public_call

__all__ = ["EncoderDecoderModel", "NPUModelForSeq2SeqLM", "NPUModelForSpeechSeq2Seq"]

join_transformers()

_REFUSED = ("labels", "decoder_inputs_embeds", "inputs_embeds", "output_hidden_states")


class EncoderDecoderModel:
    """A model with an encoder and a decoder, compiled for the npu device.

    Made by `from_pretrained`, which returns an instance of this class and of transformers' own for
    the architecture: `generate` and all it needs are transformers', with batches, beams, sampling,
    streamers, and for Whisper long audio and timestamps. Tokens stay on the host.

    Attributes:
        config: the transformers config.
        generation_config: the defaults of generate.
        precision: how weights are stored and arithmetic is done.
        report: how this start went: times, and whether it came from the cache.
        verification: the outcome of comparing the programs with torch.
    """

    config: Any
    generation_config: Any
    precision: Precision
    report: LoadReport
    verification: Verdict
    _auto: Any = None

    @classmethod
    @public_call
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        dtype: str | torch.dtype | None = None,
        pipeline: str | None = None,
        verify: str = "first",
        device: str | torch.device | None = None,
        cache_dir: str | Path | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        token: str | bool | None = None,
        on_progress: ProgressListener | None = None,
    ) -> Self:
        """Loads a model, from the compile cache where this start is not the first.

        Args:
            pretrained_model_name_or_path: a checkpoint folder of transformers, a folder that
                `export` wrote, or a name on the hub.
            dtype: as in NPUModelForCausalLM.from_pretrained.
            pipeline: "dynamic" for programs that take any size, "static" for programs of fixed
                sizes, as NPUs need them; by default what suits the device.
            verify: "first" to compare the programs with torch once; "always" to compare at each
                start; "off" to skip the comparison.
            device: None or "npu".
            cache_dir: where compiled models are kept; see npu_llm.config for the default.
            trust_remote_code: whether model code inside the checkpoint may run.
            revision: which revision, for a name on the hub.
            token: access token, for a name on the hub.
            on_progress: called with a stage and how much of it is done, 0.0 to 1.0.

        Raises:
            ModelError: when there is no such model, its files are damaged, or it is one for
                another task: [unknown-architecture], [model-task].
            CaptureError: when the architecture cannot run here.
            OptionError: for an unknown dtype, or another device.
            npu_compiler.errors.WrongResultError: when a program's results differ from torch's.
        """
        options = LoadOptions(
            dtype=dtype,
            pipeline=pipeline,
            verify=verify,
            device=device,
            cache_dir=cache_dir,
            trust_remote_code=trust_remote_code,
            revision=revision,
            token=token,
            on_progress=on_progress,
        )
        ready = make_parts_ready(pretrained_model_name_or_path, options, auto=cls._auto)
        made: Self = _completed(make_skeleton(ready.entry, cls), ready)
        return made

    @classmethod
    @public_call
    def export(
        cls,
        name_or_path: str | Path,
        output: str | Path,
        *,
        dtype: str | torch.dtype | None = None,
        pipeline: str | None = None,
        verify: str = "first",
        trust_remote_code: bool = False,
        on_progress: ProgressListener | None = None,
    ) -> Path:
        """Writes a model that starts without being traced, and here without compiling.

        Args:
            name_or_path: a checkpoint folder, or a name on the hub.
            output: the folder to write, which must be empty or not exist.
            dtype: as in from_pretrained.
            pipeline: as in from_pretrained.
            verify: "off" to skip comparing the programs with torch.
            trust_remote_code: whether model code inside the checkpoint may run.
            on_progress: called with a stage and how much of it is done, 0.0 to 1.0.

        Returns:
            The folder, which from_pretrained takes, as processors and tokenizers do.

        Raises:
            OptionError: [output-exists] for a folder that is not empty.
            ModelError, CaptureError: as from_pretrained does.
        """
        options = LoadOptions(
            dtype=dtype,
            pipeline=pipeline,
            verify=verify,
            trust_remote_code=trust_remote_code,
            on_progress=on_progress,
        )
        return export_parts(name_or_path, output, options, auto=cls._auto)

    # What transformers asks a model for

    @property
    def device(self) -> torch.device:
        """torch.device("cpu"), where tokens and inputs are; the programs run on the npu device."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """torch.float32, that of inputs; see `precision` for the weights'."""
        return torch.float32

    def to(self, *_: Any, **__: Any) -> Self:
        """Returns the model: its programs stay where they are."""
        return self

    def run_forward(self, *args: Any, **kwargs: Any) -> Seq2SeqLMOutput:
        """Runs the encoder if its result is not given, and a step of the decoder.

        Args:
            args: as transformers' class takes them.
            kwargs: likewise; `labels`, embeddings and hidden states are refused.

        Returns:
            logits (batch, tokens, vocabulary) float32, the cache, the encoder's result, and with
            output_attentions the weights of cross-attention, if the model aligns tokens by them.

        Raises:
            OptionError: [no-inner-states] for what the programs do not compute, [foreign-cache] for
                a cache that this class did not make, and what the checks of the inputs raise.
            ContextError: [context-overflow] for more tokens than the model takes.
        """
        named = _named(self, args, kwargs)
        wants = self._wants_attentions(named)
        outputs = named.get("encoder_outputs")
        if outputs is None:
            outputs = self.get_encoder()(  # type: ignore[attr-defined]
                named.get(self.main_input_name),  # type: ignore[attr-defined]
                attention_mask=named.get("attention_mask"),
            )
        elif not isinstance(outputs, dict):
            outputs = BaseModelOutput(last_hidden_state=outputs[0])
        cache = rename_cache(named)
        if cache is None:
            cache = self.new_cache(attending=wants)
        _check_cache(cache)
        hidden = outputs["last_hidden_state"].to("cpu")
        if not cache.has_source:
            mask = outputs.get("attention_mask")
            mask = named.get("attention_mask") if mask is None else mask
            if mask is None and self._has_mask:
                mask = torch.ones(hidden.shape[:2], dtype=torch.int64)
            cache.read(hidden, mask if self._has_mask else None)
        ids = check_tokens("decoder_input_ids", named.get("decoder_input_ids"), self._vocabulary)
        mask = named.get("decoder_attention_mask")
        places = named.get("decoder_position_ids")
        found = cache.next(
            ids,
            mask=None if mask is None else mask.to("cpu"),
            places=None if places is None else places.to("cpu"),
        )
        return Seq2SeqLMOutput(
            logits=found.logits,
            cross_attentions=found.attentions or None,
            encoder_last_hidden_state=hidden,
            **{CACHE: None if named.get("use_cache") is False else cache},
        )

    def new_cache(self, *, attending: bool = False) -> CrossCache:
        """An empty cache, for `past_key_values` of forward and generate.

        Args:
            attending: whether its steps also return the weights of cross-attention.
        """
        return self._ready.parts.new_cache("attending" if attending else "decoder")

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *_: Any, **__: Any
    ) -> None:
        """Makes the cache for a generation; transformers' own kinds cannot be used here."""
        if model_kwargs.get(CACHE) is None and generation_config.use_cache:
            wants = self._wants_attentions(
                {"output_attentions": generation_config.output_attentions}
            )
            model_kwargs[CACHE] = self.new_cache(attending=wants)

    @functools.wraps(GenerationMixin._sample)  # generate looks at the signature
    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        return _computed(super()._sample(*args, **kwargs))  # type: ignore[misc]

    @functools.wraps(GenerationMixin._beam_search)  # generate looks at the signature
    def _beam_search(self, *args: Any, **kwargs: Any) -> Any:
        return _computed(super()._beam_search(*args, **kwargs))  # type: ignore[misc]

    @functools.wraps(GenerationMixin._assisted_decoding)  # generate looks at the signature
    def _assisted_decoding(self, *args: Any, **kwargs: Any) -> Any:
        return _computed(super()._assisted_decoding(*args, **kwargs))  # type: ignore[misc]

    # What this class needs

    _ready: Ready
    _vocabulary: int
    _has_mask: bool

    def _wants_attentions(self, named: dict[str, Any]) -> bool:
        for name in _REFUSED:
            if named.get(name) is not None and named[name] is not False:
                raise OptionError(
                    f"{name}: a compiled model takes tokens and returns logits; got "
                    f"{type(named[name]).__name__}. Omit it.",
                    code="no-inner-states",
                )
        if not named.get("output_attentions"):
            return False
        if "attending" not in self._ready.entry.about["outputs"]:
            raise OptionError(
                "output_attentions: must be omitted for a model that does not align its tokens by "
                "them (alignment_heads of its generation config); got True. Omit it.",
                code="no-inner-states",
            )
        return True


class NPUModelForSeq2SeqLM(EncoderDecoderModel):
    """A model from text to text: T5, mT5, BART, MarianMT, M2M100 and NLLB, Pegasus, and others."""

    _auto = AutoModelForSeq2SeqLM


class NPUModelForSpeechSeq2Seq(EncoderDecoderModel):
    """A model from speech to text: Whisper of any size, and Moonshine."""

    _auto = AutoModelForSpeechSeq2Seq


def _completed(model: Any, ready: Ready) -> Any:
    """Adds the programs to a skeleton."""
    model._ready = ready
    model.precision, model.report = ready.entry.precision, ready.report
    model.verification = ready.report.verification
    model._vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    model._has_mask = ready.entry.about["takes_mask"]
    encoder = model.get_encoder()
    taken = set(ready.entry.about["encoder_inputs"])
    limit = ready.entry.about["source_positions"]
    main = model.main_input_name

    def encode(*args: Any, **kwargs: Any) -> BaseModelOutput:
        values = dict(
            inspect.signature(type(encoder).forward).bind(None, *args, **kwargs).arguments
        )
        values |= values.pop("kwargs", {})
        given = check_encoder_inputs(
            main, values, taken=taken, limit=limit, vocabulary=model._vocabulary
        )
        hidden, mask = ready.parts.encode(given)
        found = BaseModelOutput(last_hidden_state=hidden)
        if "attention_mask" in ready.entry.about["outputs"]["encoder"]:
            found["attention_mask"] = mask
        return found

    encoder.forward = functools.wraps(encoder.forward)(encode)
    return model


def _named(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call of forward by name."""
    bound = inspect.signature(type(model).forward).bind(model, *args, **kwargs)
    named = dict(bound.arguments)
    return {**named, **named.pop("kwargs", {})}


def _check_cache(cache: Any) -> None:
    if not isinstance(cache, CrossCache):
        raise OptionError(
            "past_key_values: must be a cache that this model returned; got a "
            f"{type(cache).__name__}. Omit it for a new one.",
            code="foreign-cache",
        )


def _computed(found: Any) -> Any:
    """Leaves out of what generate returns what programs do not give: caches, and own attention."""
    if not isinstance(found, dict):
        return found
    absent = {CACHE, "decoder_attentions"}
    return type(found)(**{name: value for name, value in found.items() if name not in absent})
