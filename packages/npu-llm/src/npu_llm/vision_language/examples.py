"""Example inputs of a model for images and text, by what its forward takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from npu_llm.errors import CaptureError

__all__ = ["example_images", "example_text"]

# Patches of a grid's image, as multiples of those that are merged into one.
_GRID = (2, 3)


def example_images(
    model: Any, *, rows: int, fill: Callable[[Sequence[int]], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns images as a model's processor would, one for each of some texts.

    Args:
        model: a model of transformers for images and text.
        rows: how many texts.
        fill: makes a float tensor of a shape.

    Returns:
        pixel_values, and what else forward takes with them.

    Raises:
        CaptureError: [unknown-encoder] for a model that takes images in another way.
    """
    taken = inspect.signature(model.forward).parameters
    vision: Any = getattr(model.config, "vision_config", None)
    size = getattr(vision, "image_size", None)
    side: Any = size[0] if isinstance(size, (list, tuple)) else size
    count: Any = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", 3)
    channels = int(count)
    if "image_grid_thw" in taken:
        merged = int(vision.spatial_merge_size)
        height, width = (merged * times for times in _GRID)
        length = channels * vision.temporal_patch_size * vision.patch_size**2
        grid = torch.tensor([[1, height, width]] * rows)
        return {"pixel_values": fill((rows * height * width, length)), "image_grid_thw": grid}
    if side is None or "pixel_values" not in taken:
        raise CaptureError(
            f"{type(model).__name__}: must take images as pixel_values of a known size, or as "
            "patches with a grid; got another way. Such models are not supported yet.",
            code="unknown-encoder",
        )
    one = (channels, int(side), int(side))
    if "pixel_attention_mask" in taken:
        mask = torch.ones(rows, 1, side, side, dtype=torch.int64)
        return {"pixel_values": fill((rows, 1, *one)), "pixel_attention_mask": mask}
    if "image_sizes" in taken and getattr(model.config, "image_grid_pinpoints", None):
        # Of the first resolution: tiles, and before them the whole image.
        height, width = model.config.image_grid_pinpoints[0]
        tiles = 1 + (height // side) * (width // side)
        sizes = torch.tensor([[height, width]] * rows)
        return {"pixel_values": fill((rows, tiles, *one)), "image_sizes": sizes}
    return {"pixel_values": fill((rows, *one))}


def example_text(
    model: Any, *, images: int, tokens: Sequence[Sequence[int]]
) -> dict[str, torch.Tensor]:
    """Returns texts in which an image stands after the first token.

    Args:
        model: a model of transformers for images and text.
        images: how many places the image takes.
        tokens: of each row, at least two; shorter rows are padded on the left.

    Returns:
        input_ids and attention_mask (rows, length), and the kinds of tokens if forward takes them.
    """
    mark = int(model.config.image_token_id)
    taken = inspect.signature(model.forward).parameters
    length = images + max(map(len, tokens))
    ids = torch.zeros(len(tokens), length, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, one in enumerate(tokens):
        whole = [one[0], *[mark] * images, *one[1:]]
        ids[row, -len(whole) :], mask[row, -len(whole) :] = torch.tensor(whole), 1
    kinds = (ids == mark).long()
    names = ("token_type_ids", "mm_token_type_ids")
    return {
        "input_ids": ids,
        "attention_mask": mask,
        **{name: kinds for name in names if name in taken},
    }
