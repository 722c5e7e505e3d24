"""NPUModelForImageTextToText: models that answer questions about images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText
from transformers.modeling_outputs import BaseModelOutputWithPast

from npu_llm.cache_names import CACHE, rename_cache
from npu_llm.checkpoint.source import ModelSource
from npu_llm.errors import ContextError, OptionError
from npu_llm.kv_cache.cache import join_transformers
from npu_llm.multi_part.model import MultiPartModel, check_floats, check_tokens
from npu_llm.multi_part.running import OUTER
from npu_llm.vision_language.caches import LanguageCache
from npu_llm.vision_language.running import DynamicVisionLanguage, StaticVisionLanguage
from npu_llm.vision_language.submodules import (
    LANGUAGE,
    Outline,
    find_parts,
    outer_tensors,
    read_call,
    with_positions,
)

__all__ = ["NPUModelForImageTextToText", "check_images"]

join_transformers()

_IMAGES = ("pixel_values", "pixel_values_videos")
_REFUSED = ("labels", "inputs_embeds", "output_hidden_states", "output_attentions")
# Prefixes of transformers' messages about a mismatch of images and image tokens.
_MISMATCHES = ("Image features and image tokens do not match", "Video features and video tokens")


class NPUModelForImageTextToText(MultiPartModel):
    """An image-text-to-text model, compiled for the npu device.

    Created by `from_pretrained`, as an instance of both this class and transformers' class for the
    architecture: LLaVA, SmolVLM and Idefics3, Gemma 3, Qwen2-VL and Qwen2.5-VL, InternVL,
    PaliGemma, LLaVA-OneVision, and other combinations of an image encoder and a language model.
    `generate` and the code between the parts is that of transformers: merging images into tokens,
    positions, masks. Tensors stay on the host. For attributes see
    npu_llm.multi_part.model.MultiPartModel.
    """

    _auto = AutoModelForImageTextToText
    _dynamic: ClassVar = DynamicVisionLanguage
    _static: ClassVar = StaticVisionLanguage
    _vocabulary: int

    @classmethod
    def _trace_parts(cls, model: Any, source: ModelSource, *, is_static: bool) -> Any:
        # A slow import, not needed to load from the cache.
        from npu_llm.vision_language.parts import trace_parts

        return trace_parts(model, source, is_static=is_static)

    @classmethod
    def _compare_parts(cls, parts: Any, reference: Any, name: str) -> str | None:
        from npu_llm.vision_language.parts import compare_model

        return compare_model(cls._around(parts), reference)

    def _complete(self) -> None:
        self._vocabulary = _token_bound(self.config)
        held = load_file(self._entry.folder / OUTER)
        for name, tensor in list(outer_tensors(self)):
            _replace(self, name, held[name].to(tensor.dtype))
        for name, part in find_parts(self).items():
            for inner, tensor in (*part.named_parameters(), *part.named_buffers()):
                # The model's code reads their device and dtype.
                _replace(part, inner, torch.zeros((), dtype=tensor.dtype).expand(tensor.shape))
            run = _run_language(part) if name == LANGUAGE else self._run_part(name, part)
            object.__setattr__(part, "forward", functools.wraps(part.forward)(run))

    def _run_part(self, name: str, part: torch.nn.Module) -> Callable[..., Any]:
        """Returns the forward of a part without a cache."""
        # The traced call, see npu_llm.vision_language.tracing.SeenPart.
        known: dict[str, Any] | None = self._entry.about["parts"].get(name)

        def run(*args: Any, **kwargs: Any) -> Any:
            call = read_call(part, args, kwargs)
            tensors = with_positions(part, call.tensors)
            got = _listed(sorted(tensors), call.choices)
            if known is None or got != _listed(known["inputs"], known["choices"]):
                wanted = "not at all"
                if known is not None:
                    wanted = f"with {_listed(known['inputs'], known['choices'])}"
                raise OptionError(
                    f"`{name}` must be called as when it was traced, {wanted}, got {got}. Omit "
                    "image options, or load a checkpoint with these in its config.",
                    code="input-name",
                )
            return Outline(**known["result"]).make(self._parts.run(name, tensors))

        return run

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens of prompt and answer, including images; None for no limit."""
        length = self._entry.about["context_length"]
        return None if length is None else int(length)

    def new_cache(self) -> LanguageCache:
        """Returns an empty cache, for `past_key_values` of forward and generate."""
        cache: LanguageCache = self._parts.new_cache(LANGUAGE)
        return cache

    def run_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step: the image encoder if there are images, and the language model.

        Args:
            args: arguments of transformers' class.
            kwargs: arguments of transformers' class; `labels`, embeddings, attentions and hidden
                states are rejected.

        Returns:
            The result of transformers' class: logits (batch, kept, vocabulary) float32, the cache,
            and the image embeddings.

        Raises:
            OptionError: [no-inner-states] for results that the programs do not compute,
                [foreign-cache] for a cache of another class, [image-tokens] if the numbers of
                images and image tokens differ, and the errors of the input checks.
            ContextError: [context-overflow] for more tokens than the model supports.
        """
        named = self._arguments(args, kwargs, _REFUSED)
        named["input_ids"] = check_tokens("input_ids", named.get("input_ids"), self._vocabulary)
        check_images(named, self._entry.about["pixels"])
        cache = self._given_cache(named, LanguageCache)
        if cache is None:
            cache = named[CACHE] = self.new_cache()
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
        """Creates the cache for a generation; transformers' cache classes are not supported."""
        if model_kwargs.get(CACHE) is None and generation_config.use_cache:
            model_kwargs[CACHE] = self.new_cache()

    def _prepare_generated_length(self, *args: Any, **kwargs: Any) -> Any:
        """Ends an answer at the end of the context instead of raising there."""
        config = super()._prepare_generated_length(*args, **kwargs)  # type: ignore[misc]
        length, most = kwargs["input_ids_length"], self.context_length
        if most is not None and length > most:
            raise ContextError(
                f"{self._entry.name}: its context holds {most:,} tokens, images included, "
                f"got {length:,}. Shorten the prompt, or pass fewer images.",
                code="context-overflow",
            )
        if most is not None and config.max_length is not None:
            config.max_length = min(config.max_length, max(most, length + 1))
        return config


def _wrong_count(config: Any, named: dict[str, Any]) -> OptionError:
    """Returns the error for a mismatch of images and image tokens."""
    names = {"pixel_values": "image_token_id", "pixel_values_videos": "video_token_id"}
    counts = [
        f"{int((named['input_ids'] == getattr(config, mark)).sum())} for {name} "
        f"{tuple(named[name].shape)}"
        for name, mark in names.items()
        if named.get(name) is not None
    ]
    return OptionError(
        f"`input_ids` must have one image token per image embedding, got {' and '.join(counts)}. "
        "Pass text and images from the model's processor.",
        code="image-tokens",
    )


def _token_bound(config: Any) -> int:
    """Returns the upper bound of token ids; image tokens may be above the others."""
    marks = [getattr(config, name, None) or 0 for name in ("image_token_id", "video_token_id")]
    return max(int(config.get_text_config().vocab_size), *(int(mark) + 1 for mark in marks))


GLUE = "glue.safetensors"


def _run_language(part: torch.nn.Module) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        cache = rename_cache(kwargs)
        call = read_call(part, args, {k: v for k, v in kwargs.items() if k != CACHE})
        hidden = cache.read(call.tensors)
        return BaseModelOutputWithPast(last_hidden_state=hidden, **{CACHE: cache})

    return run


def _replace(module: Any, name: str, tensor: torch.Tensor) -> None:
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    if last in owner._parameters:
        owner._parameters[last] = torch.nn.Parameter(tensor, requires_grad=False)
    else:
        owner._buffers[last] = tensor


def _listed(inputs: Sequence[str], choices: Mapping[str, Any]) -> str:
    return ", ".join([*inputs, *(f"{name}={value}" for name, value in sorted(choices.items()))])


def check_images(given: Mapping[str, Any], example: Sequence[int]) -> None:
    """Checks images and video frames, because a program does not validate its inputs.

    Args:
        given: arguments of a call by name.
        example: shape of pixel_values in the trace. Its last three sizes, channels, height and
            width, are fixed; of patches (patches, numbers) only the last one.

    Raises:
        OptionError: [step-dtype] for a value that is not a float tensor, [image-channels] for
            another shape, [input-not-finite] for NaN or infinity.
    """
    fixed = tuple(example[1:] if len(example) == 2 else example[-3:])
    for name in _IMAGES:
        value = given.get(name)
        if value is None:
            continue
        check_floats(name, value, "image")
        # Videos have a dimension of frames, or images one of tiles.
        ranks = {len(example)} if name == _IMAGES[0] else {len(example), len(example) + 1}
        ranks |= {4, 5} if len(example) == 5 else set()
        if value.dim() not in ranks or tuple(value.shape[-len(fixed) :]) != fixed or not len(value):
            what = "numbers of a patch" if len(fixed) == 1 else "channels, height and width"
            raise OptionError(
                f"`{name}` must have the {what}, {_sizes(fixed)}, as its last sizes, got "
                f"{tuple(value.shape)}. Prepare images with the model's processor.",
                code="image-channels",
            )


def _sizes(fixed: Sequence[int]) -> str:
    return " x ".join(map(str, fixed))
