"""Checks the images that a model is given: a program reads whatever it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from npu_llm.errors import OptionError

__all__ = ["check_images"]

_IMAGES = ("pixel_values", "pixel_values_videos")


def check_images(given: Mapping[str, Any], example: Sequence[int]) -> None:
    """Checks what stands for images and frames of videos.

    Args:
        given: arguments of a call, by name.
        example: the shape of pixel_values that the model was captured with: its last three sizes,
            channels, height and width, are fixed; of patches (patches, numbers) the last one.

    Raises:
        OptionError: [step-dtype] for anything but a tensor of floats, [image-channels] for another
            shape, [input-not-finite] for NaN or infinity.
    """
    fixed = tuple(example[1:] if len(example) == 2 else example[-3:])
    for name in _IMAGES:
        value = given.get(name)
        if value is None:
            continue
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            got = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise OptionError(
                f"{name}: must be a tensor of floats; got {got}. Pass what the processor returns "
                'with return_tensors="pt".',
                code="step-dtype",
            )
        # A video has frames where an image has none, or tiles.
        ranks = {len(example)} if name == _IMAGES[0] else {len(example), len(example) + 1}
        ranks |= {4, 5} if len(example) == 5 else set()
        if value.dim() not in ranks or tuple(value.shape[-len(fixed) :]) != fixed or not len(value):
            what = "numbers of a patch" if len(fixed) == 1 else "channels, height and width"
            raise OptionError(
                f"{name}: its last sizes must be the {what}, {_sizes(fixed)}; got "
                f"{tuple(value.shape)}. Prepare images with the model's own processor.",
                code="image-channels",
            )
        if not bool(value.isfinite().all()):
            raise OptionError(
                f"{name}: must be finite; got NaN or infinity. Check the image that it was made "
                "of.",
                code="input-not-finite",
            )


def _sizes(fixed: Sequence[int]) -> str:
    return " x ".join(map(str, fixed))
