"""NPUModelForImageTextToText: models that answer questions about images."""

from __future__ import annotations

from typing import Any, Self

import torch
from transformers import AutoModelForImageTextToText

from npu_llm.cache_names import CACHE, rename_cache
from npu_llm.encoder_decoders.inputs import check_tokens
from npu_llm.errors import ContextError, OptionError
from npu_llm.kv_cache.cache import join_transformers
from npu_llm.part_programs.loading import Programs, Recipe
from npu_llm.part_programs.parts_model import PartsModel, named_arguments
from npu_llm.part_programs.skeleton import make_skeleton
from npu_llm.vision_language.glue import put_programs
from npu_llm.vision_language.inputs import check_images
from npu_llm.vision_language.language_cache import LanguageCache
from npu_llm.vision_language.recipe import recipe
from npu_llm.vision_language.running import Parts, parts_of

__all__ = ["NPUModelForImageTextToText"]

join_transformers()

_REFUSED = ("labels", "inputs_embeds", "output_hidden_states", "output_attentions")
# How transformers begins to say that there are more or fewer images than places for them.
_MISMATCHES = ("Image features and image tokens do not match", "Video features and video tokens")


class NPUModelForImageTextToText(PartsModel):
    """A model from images and text to text, compiled for the npu device.

    Made by `from_pretrained`, which returns an instance of this class and of transformers' own for
    the architecture: LLaVA, SmolVLM and Idefics3, Gemma 3, Qwen2-VL and Qwen2.5-VL, InternVL,
    PaliGemma, LLaVA-OneVision, and others that are made of an image encoder and a language model.
    `generate` and what lies between the parts is transformers' code: where images go among the
    tokens, positions, masks. Tensors stay on the host. For attributes see
    npu_llm.part_programs.parts_model.PartsModel.
    """

    _auto = AutoModelForImageTextToText
    _parts: Parts
    _vocabulary: int

    @classmethod
    def _recipe(cls) -> Recipe:
        return recipe(cls, cls._auto)

    @classmethod
    def on_programs(cls, programs: Programs | Parts) -> Self:
        """Returns a model of these programs, whether they are right or not."""
        made: Self = make_skeleton(programs.entry, cls)
        made._complete(programs)
        return made

    def _complete(self, programs: Programs | Parts) -> None:
        self._parts = parts_of(programs)
        self._vocabulary = _token_bound(self.config)
        put_programs(self, self._parts)

    @property
    def context_length(self) -> int | None:
        """How many tokens prompt and answer may have, images included; None for no limit."""
        length = self._parts.entry.about["context_length"]
        return None if length is None else int(length)

    def new_cache(self) -> LanguageCache:
        """An empty cache, for `past_key_values` of forward and generate."""
        return self._parts.new_cache()

    def run_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step: the image encoder if there are images, and the language model.

        Args:
            args: as transformers' class takes them.
            kwargs: likewise; `labels`, embeddings, attentions and hidden states are refused.

        Returns:
            What transformers' class returns: logits (batch, kept, vocabulary) float32, the cache,
            and what the encoder made of images.

        Raises:
            OptionError: [no-inner-states] for what the programs do not compute, [foreign-cache] for
                a cache that this class did not make, [image-tokens] if images and the tokens that
                stand for them differ in number, and what the checks of inputs raise.
            ContextError: [context-overflow] for more tokens than the model takes.
        """
        named = named_arguments(self, args, kwargs)
        for name in _REFUSED:
            if named.get(name) is not None and named[name] is not False:
                raise OptionError(
                    f"{name}: a compiled model takes tokens and returns logits; got "
                    f"{type(named[name]).__name__}. Omit it.",
                    code="no-inner-states",
                )
        named["input_ids"] = check_tokens("input_ids", named.get("input_ids"), self._vocabulary)
        check_images(named, self._parts.entry.about["pixels"])
        cache = rename_cache(named)
        if cache is None:
            cache = named[CACHE] = self.new_cache()
        if not isinstance(cache, LanguageCache):
            raise OptionError(
                "past_key_values: must be a cache that this model returned; got a "
                f"{type(cache).__name__}. Omit it for a new one.",
                code="foreign-cache",
            )
        is_kept = named.pop("use_cache", None) is not False
        try:
            with torch.no_grad():
                output = super().forward(**named, use_cache=True)  # type: ignore[misc]
        except (ValueError, RuntimeError) as failure:
            text = str(failure).strip()
            if isinstance(failure, OptionError) or not text.startswith(_MISMATCHES):
                raise
            raise _wrong_count(self.config, named) from failure
        if not is_kept:
            output[CACHE] = None
        return output

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *_: Any, **__: Any
    ) -> None:
        """Makes the cache for a generation; transformers' own kinds cannot be used here."""
        if model_kwargs.get(CACHE) is None and generation_config.use_cache:
            model_kwargs[CACHE] = self.new_cache()

    def _prepare_generated_length(self, *args: Any, **kwargs: Any) -> Any:
        """Ends an answer where the context ends, instead of failing there."""
        config = super()._prepare_generated_length(*args, **kwargs)  # type: ignore[misc]
        length, most = kwargs["input_ids_length"], self.context_length
        if most is not None and length > most:
            raise ContextError(
                f"{self._parts.entry.name}: its context holds {most:,} tokens, images included; "
                f"got {length:,}. Shorten the prompt, or pass fewer images.",
                code="context-overflow",
            )
        if most is not None and config.max_length is not None:
            config.max_length = min(config.max_length, max(most, length + 1))
        return config


def _wrong_count(config: Any, named: dict[str, Any]) -> OptionError:
    """Returns the error for images and places for them that differ in number."""
    names = {"pixel_values": "image_token_id", "pixel_values_videos": "video_token_id"}
    counts = [
        f"{int((named['input_ids'] == getattr(config, mark)).sum())} for {name} "
        f"{tuple(named[name].shape)}"
        for name, mark in names.items()
        if named.get(name) is not None
    ]
    return OptionError(
        "input_ids: must have as many image tokens as the encoder gives vectors of the images; got "
        f"{' and '.join(counts)}. Pass text and images as the model's processor returns them.",
        code="image-tokens",
    )


def _token_bound(config: Any) -> int:
    """Returns what token ids are below: those that stand for images may be beyond the others."""
    marks = [getattr(config, name, None) or 0 for name in ("image_token_id", "video_token_id")]
    return max(int(config.get_text_config().vocab_size), *(int(mark) + 1 for mark in marks))
