"""What a model of one step is traced with: its inputs by name, and which of their sizes vary."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from npu_llm.errors import CaptureError

__all__ = ["TOKEN_INPUTS", "Example", "make_example"]

TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # where there are tokens
# No size equals another, so that none is taken for another.
_BATCH, _TOKENS, _SAMPLES, _IMAGES, _SIDES = 3, 11, 8017, 2, (224, 288)
_LEAST_SEEN = 5  # in the second row of a mask, the first has all


@dataclass(frozen=True)
class Example:
    """What to trace a model with.

    Attributes:
        inputs: name of an argument of forward -> tensor.
        dynamic: name -> the dimensions whose sizes vary.
    """

    inputs: dict[str, torch.Tensor]
    dynamic: dict[str, tuple[int, ...]]

    def smaller(self) -> dict[str, torch.Tensor]:
        """Returns the beginnings of the inputs, a third less in each dimension that varies."""
        found = {}
        for name, tensor in self.inputs.items():
            for dim in self.dynamic.get(name, ()):
                size = tensor.shape[dim]
                tensor = tensor.narrow(dim, 0, size - max(size // 3, 1))
            found[name] = tensor.contiguous()
        return found


def make_example(model: Any, *, sizes: dict[str, Any] | None = None) -> Example:
    """Makes the inputs of a model from its config and the signature of its forward.

    Args:
        model: of transformers.
        sizes: of images, as image processors give them: height and width.

    Raises:
        CaptureError: [model-inputs] for a model that reads neither text, images nor sound.
    """
    taken = inspect.signature(model.forward).parameters
    inputs: dict[str, torch.Tensor] = {}
    dynamic: dict[str, tuple[int, ...]] = {}
    draws = torch.Generator().manual_seed(0)
    if "input_ids" in taken:
        _add_tokens(model, taken, draws, inputs, dynamic)
    if "pixel_values" in taken:
        _add_images(model, taken, draws, sizes or {}, inputs, dynamic)
    if "input_values" in taken or "input_features" in taken:
        _add_sound(model, taken, draws, inputs, dynamic)
    if not inputs:
        raise CaptureError(
            f"{type(model).__name__}: a model of one step reads input_ids, pixel_values, "
            f"input_values or input_features; got one that reads {', '.join(taken)}. Such models "
            "are not supported.",
            code="model-inputs",
        )
    return Example(inputs, dynamic)


def _add_tokens(model: Any, taken: Any, draws: torch.Generator, inputs: Any, dynamic: Any) -> None:
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None) or _TOKENS
    shape = (_BATCH, min(_TOKENS, max(most - 3, 2)))
    inputs["input_ids"] = torch.randint(min(3, config.vocab_size - 1), config.vocab_size, shape,
                                        generator=draws)  # fmt: skip
    mask = torch.ones(shape, dtype=torch.int64)
    mask[1, _LEAST_SEEN:] = 0
    if "attention_mask" in taken:
        inputs["attention_mask"] = mask
    kinds: int = getattr(config, "type_vocab_size", 0)
    if "token_type_ids" in taken and kinds:
        inputs["token_type_ids"] = torch.zeros(shape, dtype=torch.int64)
        if kinds > 1:
            inputs["token_type_ids"][:, 4:] = 1
    dynamic.update(dict.fromkeys(set(TOKEN_INPUTS) & set(inputs), (0, 1)))


def _add_images(
    model: Any, taken: Any, draws: torch.Generator, sizes: Any, inputs: Any, dynamic: Any
) -> None:
    config = getattr(model.config, "vision_config", None) or model.config
    fixed = getattr(config, "image_size", None)
    if isinstance(fixed, int):
        fixed = (fixed, fixed)
    elif "height" in sizes:
        fixed = fixed or (sizes["height"], sizes["width"])
    height, width = fixed or _SIDES
    channels = getattr(config, "num_channels", 3)
    shape = (_IMAGES, channels, height, width)
    inputs["pixel_values"] = torch.randn(shape, generator=draws)
    varying = (0,) if fixed else (0, 2, 3)
    dynamic["pixel_values"] = varying
    if "pixel_mask" in taken:
        mask = torch.ones((_IMAGES, height, width), dtype=torch.int64)
        mask[1, height * 3 // 4 :] = 0
        inputs["pixel_mask"] = mask
        dynamic["pixel_mask"] = (0,) if fixed else (0, 1, 2)


def _add_sound(model: Any, taken: Any, draws: torch.Generator, inputs: Any, dynamic: Any) -> None:
    config = model.config
    if "input_features" in taken:
        shape: tuple[int, ...] = (_BATCH, config.num_mel_bins, 2 * config.max_source_positions)
        inputs["input_features"] = torch.randn(shape, generator=draws)
        dynamic["input_features"] = (0,)
        return
    bands = getattr(config, "num_mel_bins", None)
    if bands is not None:  # a spectrogram of fixed length, as the Audio Spectrogram Transformer's
        shape = (_BATCH, config.max_length, bands)
        dynamic["input_values"] = (0,)
    else:
        shape = (_BATCH, _SAMPLES)
        dynamic["input_values"] = (0, 1)
    inputs["input_values"] = torch.randn(shape, generator=draws)
    if "attention_mask" in taken and bands is None:
        mask = torch.ones(shape, dtype=torch.int64)
        mask[1, _SAMPLES * 2 // 3 :] = 0
        inputs["attention_mask"] = mask
        dynamic["attention_mask"] = (0, 1)
