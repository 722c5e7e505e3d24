"""NPUModelForSeq2SeqLM and NPUModelForSpeechSeq2Seq: encoder-decoder models."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    LogitsProcessor,
    LogitsProcessorList,
)
from transformers.generation import (
    GenerationMixin,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from npu_llm.cache_names import CACHE
from npu_llm.checkpoint.source import ModelSource
from npu_llm.decoding import can_decode, decode, one_thread
from npu_llm.encoder_decoders.caches import CrossCache
from npu_llm.encoder_decoders.running import (
    DynamicEncoderDecoder,
    StaticEncoderDecoder,
    encode,
)
from npu_llm.errors import ContextError, OptionError
from npu_llm.kv_cache.cache import join_transformers
from npu_llm.multi_part.model import MultiPartModel, check_floats, check_tokens

__all__ = [
    "EncoderDecoderModel",
    "NPUModelForSeq2SeqLM",
    "NPUModelForSpeechSeq2Seq",
    "check_encoder_inputs",
    "suppress_by_index",
]

join_transformers()

# Arguments of generate's steps that our own loop supports.
_KNOWN = frozenset(("attention_mask", "cache_position", "encoder_outputs", CACHE, "use_cache"))
_OF_SEARCH = ("synced_gpus", "streamer")
_REFUSED = ("labels", "decoder_inputs_embeds", "inputs_embeds", "output_hidden_states")


class EncoderDecoderModel(MultiPartModel):
    """An encoder-decoder model, compiled for the npu device.

    Created by `from_pretrained`, as an instance of both this class and transformers' class for the
    architecture. `generate` is that of transformers, with batches, beams, sampling, streamers, and
    for Whisper long audio and timestamps. Tokens stay on the host. For attributes see
    npu_llm.multi_part.model.MultiPartModel.
    """

    _dynamic: ClassVar = DynamicEncoderDecoder
    _static: ClassVar = StaticEncoderDecoder
    _vocabulary: int
    _has_mask: bool

    @classmethod
    def _trace_parts(cls, model: Any, source: ModelSource, *, is_static: bool) -> Any:
        # A slow import, not needed to load from the cache.
        from npu_llm.encoder_decoders.parts import trace_parts

        return trace_parts(model, source, is_static=is_static)

    @classmethod
    def _compare_parts(cls, parts: Any, reference: Any, name: str) -> str | None:
        from npu_llm.encoder_decoders.parts import compare_parts

        return compare_parts(parts, reference, name)

    def _complete(self) -> None:
        model, about = self._as_transformers, self._entry.about
        self._vocabulary = int(self.config.get_text_config(decoder=True).vocab_size)
        self._has_mask = about["takes_mask"]
        encoder, main = model.get_encoder(), model.main_input_name
        taken = set(about["encoder_inputs"])

        def run_encoder(*args: Any, **kwargs: Any) -> BaseModelOutput:
            signature = inspect.signature(type(encoder).forward)
            values = dict(signature.bind(None, *args, **kwargs).arguments)
            values |= values.pop("kwargs", {})
            given = check_encoder_inputs(
                main,
                values,
                taken=taken,
                limit=about["source_positions"],
                vocabulary=self._vocabulary,
            )
            hidden, mask = encode(self._parts, given)
            found = BaseModelOutput(last_hidden_state=hidden)
            if "attention_mask" in about["outputs"]["encoder"]:
                found["attention_mask"] = mask
            return found

        encoder.forward = functools.wraps(encoder.forward)(run_encoder)

    def run_forward(self, *args: Any, **kwargs: Any) -> Seq2SeqLMOutput:
        """Runs the encoder unless its output is given, and a step of the decoder.

        Args:
            args: arguments of transformers' class.
            kwargs: arguments of transformers' class; `labels`, embeddings and hidden states are
                rejected.

        Returns:
            logits (batch, tokens, vocabulary) float32, the cache, the encoder's output, and with
            output_attentions the cross-attention weights, if the model aligns tokens by them.

        Raises:
            OptionError: [no-inner-states] for results that the programs do not compute,
                [foreign-cache] for a cache of another class, and the errors of the input checks.
            ContextError: [context-overflow] for more tokens than the model supports.
        """
        named = self._arguments(args, kwargs, _REFUSED)
        wants = self._wants_attentions(bool(named.get("output_attentions")))
        outputs = named.get("encoder_outputs")
        if outputs is None:
            model = self._as_transformers
            outputs = model.get_encoder()(
                named.get(model.main_input_name), attention_mask=named.get("attention_mask")
            )
        elif not isinstance(outputs, dict):
            outputs = BaseModelOutput(last_hidden_state=outputs[0])
        cache = self._given_cache(named, CrossCache)
        if cache is None:
            cache = self.new_cache(attending=wants)
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
        """Returns an empty cache, for `past_key_values` of forward and generate.

        Args:
            attending: whether its steps also return cross-attention weights.
        """
        cache: CrossCache = self._parts.new_cache("attending" if attending else "decoder")
        return cache

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *_: Any, **__: Any
    ) -> None:
        """Creates the cache for a generation; transformers' cache classes are not supported."""
        if model_kwargs.get(CACHE) is None and generation_config.use_cache:
            wants = self._wants_attentions(bool(generation_config.output_attentions))
            model_kwargs[CACHE] = self.new_cache(attending=wants)

    @functools.wraps(GenerationMixin._sample)  # generate inspects the signature
    def _sample(
        self,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Runs greedy search and sampling in our own loop if it supports the options."""
        search = (suppress_by_index(logits_processor), stopping_criteria, generation_config)
        given = {name: value for name, value in kwargs.items() if name not in _OF_SEARCH}
        is_synced = kwargs.get("synced_gpus") or any(args)
        if is_synced or not can_decode(input_ids, generation_config, given, known=_KNOWN):
            with one_thread():
                return _computed(super()._sample(input_ids, *search, *args, **kwargs))  # type: ignore[misc]
        cache = given[CACHE]

        def first(ids: torch.Tensor, **_: Any) -> torch.Tensor:
            logits: torch.Tensor = self.run_forward(decoder_input_ids=ids, **given).logits
            return logits

        def then(_: Any, values: Mapping[str, torch.Tensor], **__: Any) -> torch.Tensor:
            logits: torch.Tensor = cache.next(values["input_ids"]).logits
            return logits

        found = decode(
            first,
            input_ids,
            cache=cache,
            attention_mask=None,
            position_ids=None,
            logits_processor=search[0],
            stopping_criteria=stopping_criteria,
            config=generation_config,
            streamer=kwargs.get("streamer"),
            result="GenerateEncoderDecoderOutput",
            then=then,
        )
        return _computed(found)

    @functools.wraps(GenerationMixin._beam_search)  # generate inspects the signature
    def _beam_search(
        self, input_ids: torch.Tensor, logits_processor: Any, *args: Any, **kwargs: Any
    ) -> Any:
        quicker = suppress_by_index(logits_processor)
        with one_thread():
            return _computed(super()._beam_search(input_ids, quicker, *args, **kwargs))  # type: ignore[misc]

    @functools.wraps(GenerationMixin._assisted_decoding)  # generate inspects the signature
    def _assisted_decoding(self, *args: Any, **kwargs: Any) -> Any:
        with one_thread():
            return _computed(super()._assisted_decoding(*args, **kwargs))  # type: ignore[misc]

    @property
    def _as_transformers(self) -> Any:
        """The model, typed as an instance of transformers' class."""
        return self

    def _wants_attentions(self, asked: bool) -> bool:
        """Checks that the model can return cross-attention weights if they are requested."""
        if asked and "attending" not in self._entry.about["outputs"]:
            raise OptionError(
                "`output_attentions` must be omitted for a model that does not align its tokens by "
                "them (alignment_heads of its generation config), got True. Omit it.",
                code="no-inner-states",
            )
        return asked


class NPUModelForSeq2SeqLM(EncoderDecoderModel):
    """A text-to-text model: T5, mT5, BART, MarianMT, M2M100 and NLLB, Pegasus, and others."""

    _auto = AutoModelForSeq2SeqLM


class NPUModelForSpeechSeq2Seq(EncoderDecoderModel):
    """A speech-to-text model: Whisper of any size, and Moonshine."""

    _auto = AutoModelForSpeechSeq2Seq


def _computed(found: Any) -> Any:
    """Removes caches and self-attention, which programs do not return, from generate's result."""
    if not isinstance(found, dict):
        return found
    absent = {CACHE, "decoder_attentions"}
    return type(found)(**{name: value for name, value in found.items() if name not in absent})


def check_encoder_inputs(
    main: str,
    values: Mapping[str, Any],
    *,
    taken: set[str],
    limit: int | None,
    vocabulary: int,
) -> dict[str, torch.Tensor]:
    """Returns the inputs of the encoder's program by name.

    Args:
        main: name of the main input: tokens (batch, length), samples (batch, length) or spectra
            (batch, bands, frames).
        values: the caller's arguments.
        taken: names of the program's inputs.
        limit: maximum number of tokens; None for no limit.
        vocabulary: vocabulary size; token ids are below it.

    Raises:
        OptionError: [step-shape], [step-dtype], [token-range] for invalid tokens,
            [input-not-finite] for audio that is not finite.
        ContextError: [context-overflow] for more tokens than the encoder supports.
    """
    if main == "input_ids":
        found = check_tokens(main, values.get(main), vocabulary)
        if limit is not None and found.shape[1] > limit:
            raise ContextError(
                f"`{main}` must be at most {limit:,} tokens for the encoder, got "
                f"{found.shape[1]:,}. Shorten or split the text.",
                code="context-overflow",
            )
    else:
        found = check_floats(main, values.get(main), "sound").to("cpu", torch.float32)
    given = {main: found}
    if "attention_mask" in taken:
        mask = values.get("attention_mask")
        shape = (found.shape[0], found.shape[1])
        if mask is None:
            mask = torch.ones(shape, dtype=torch.int64)
        if tuple(mask.shape) != shape:
            raise OptionError(
                f"`attention_mask` must have the shape of {main}, {shape}, got "
                f"{tuple(mask.shape)}. Pass the matching mask.",
                code="step-shape",
            )
        given["attention_mask"] = mask
    return given


class _Suppressed(LogitsProcessor):  # type: ignore[misc]
    """Sets the scores of tokens to -inf, at all lengths or at one.

    Attributes:
        tokens: (count,) int64, including ids outside the vocabulary.
        length: number of tokens at which they are suppressed; None for all.
    """

    def __init__(self, tokens: torch.Tensor, length: int | None) -> None:
        self.tokens = tokens.flatten().to(torch.int64)
        self.length = length
        self._chosen = (0, self.tokens)  # valid ids for this vocabulary size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns the scores (batch, vocabulary) of the next tokens."""
        if self.length is not None and input_ids.shape[-1] != self.length:
            return scores
        if self._chosen[0] != scores.shape[-1]:
            exist = (self.tokens >= 0) & (self.tokens < scores.shape[-1])
            self._chosen = (scores.shape[-1], self.tokens[exist].to(scores.device))
        return scores.index_fill(-1, self._chosen[1], -torch.inf)


class _Processors(LogitsProcessorList):  # type: ignore[misc]
    """A list that does not inspect each processor's signature for each token."""

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Returns the scores after all processors."""
        if kwargs:
            return super().__call__(input_ids, scores, **kwargs)
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


def suppress_by_index(processors: LogitsProcessorList) -> LogitsProcessorList:
    """Returns equivalent processors that do not compare tokens with each other.

    transformers' processors compare every token with every suppressed one at each step: for the 90
    tokens in Whisper's configs that takes as long as a step of its smallest model.
    """
    return _Processors([_quicker(one) for one in processors])


def _quicker(processor: LogitsProcessor) -> LogitsProcessor:
    if type(processor) is SuppressTokensLogitsProcessor:
        return _Suppressed(processor.suppress_tokens, None)
    if type(processor) is SuppressTokensAtBeginLogitsProcessor:
        return _Suppressed(processor.begin_suppress_tokens, processor.begin_index)
    return processor
