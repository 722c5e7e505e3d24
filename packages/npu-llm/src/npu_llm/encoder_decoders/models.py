"""NPUModelForSeq2SeqLM and NPUModelForSpeechSeq2Seq: models with an encoder and a decoder."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from npu_llm.cache_names import CACHE, rename_cache
from npu_llm.decoding.host_threads import one_thread
from npu_llm.decoding.loop import can_decode, decode
from npu_llm.encoder_decoders.cross_cache import CrossCache
from npu_llm.encoder_decoders.inputs import check_encoder_inputs, check_tokens
from npu_llm.encoder_decoders.recipe import parts_of, recipe
from npu_llm.encoder_decoders.running import Parts
from npu_llm.encoder_decoders.suppression import by_index
from npu_llm.errors import OptionError
from npu_llm.kv_cache.cache import join_transformers
from npu_llm.part_programs.loading import Programs, Recipe
from npu_llm.part_programs.parts_model import PartsModel, named_arguments

__all__ = ["EncoderDecoderModel", "NPUModelForSeq2SeqLM", "NPUModelForSpeechSeq2Seq"]

join_transformers()

# What generate passes to a step that our own loop supports.
_KNOWN = frozenset(("attention_mask", "cache_position", "encoder_outputs", CACHE, "use_cache"))
_OF_SEARCH = ("synced_gpus", "streamer")
_REFUSED = ("labels", "decoder_inputs_embeds", "inputs_embeds", "output_hidden_states")


class EncoderDecoderModel(PartsModel):
    """A model with an encoder and a decoder, compiled for the npu device.

    Made by `from_pretrained`, which returns an instance of this class and of transformers' own for
    the architecture: `generate` and all it needs are transformers', with batches, beams, sampling,
    streamers, and for Whisper long audio and timestamps. Tokens stay on the host. For attributes
    see npu_llm.part_programs.parts_model.PartsModel.
    """

    @classmethod
    def _recipe(cls) -> Recipe:
        return recipe(cls._auto)

    def _complete(self, programs: Programs | Parts) -> None:
        _complete(self, programs)

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
        named = named_arguments(self, args, kwargs)
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
        return self._parts.new_cache("attending" if attending else "decoder")

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
    def _sample(
        self,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Greedy search and sampling, by our own loop where it supports what is asked for."""
        search = (by_index(logits_processor), stopping_criteria, generation_config)
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

    @functools.wraps(GenerationMixin._beam_search)  # generate looks at the signature
    def _beam_search(
        self, input_ids: torch.Tensor, logits_processor: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with one_thread():
            return _computed(
                super()._beam_search(input_ids, by_index(logits_processor), *args, **kwargs)  # type: ignore[misc]
            )

    @functools.wraps(GenerationMixin._assisted_decoding)  # generate looks at the signature
    def _assisted_decoding(self, *args: Any, **kwargs: Any) -> Any:
        with one_thread():
            return _computed(super()._assisted_decoding(*args, **kwargs))  # type: ignore[misc]

    # What this class needs

    _parts: Parts
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
        if "attending" not in self._entry.about["outputs"]:
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


def _complete(model: Any, programs: Programs | Parts) -> None:
    """Adds the programs to a skeleton."""
    parts = parts_of(programs)
    about = model._entry.about
    model._parts = parts
    model._vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    model._has_mask = about["takes_mask"]
    encoder = model.get_encoder()
    taken = set(about["encoder_inputs"])
    limit = about["source_positions"]
    main = model.main_input_name

    def encode(*args: Any, **kwargs: Any) -> BaseModelOutput:
        values = dict(
            inspect.signature(type(encoder).forward).bind(None, *args, **kwargs).arguments
        )
        values |= values.pop("kwargs", {})
        given = check_encoder_inputs(
            main, values, taken=taken, limit=limit, vocabulary=model._vocabulary
        )
        hidden, mask = parts.encode(given)
        found = BaseModelOutput(last_hidden_state=hidden)
        if "attention_mask" in about["outputs"]["encoder"]:
            found["attention_mask"] = mask
        return found

    encoder.forward = functools.wraps(encoder.forward)(encode)


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
