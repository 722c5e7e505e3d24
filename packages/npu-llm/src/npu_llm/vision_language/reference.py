"""What torch computes for an image and a few tokens, and how programs are compared with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from npu_llm.cache_names import CACHE
from npu_llm.part_programs.reference import Reference, compute, differ
from npu_llm.verification.reference import Integers, Rounding
from npu_llm.vision_language.examples import example_images, example_text
from npu_llm.vision_language.observing import count_image_tokens

if TYPE_CHECKING:
    from npu_llm.checkpoint.streamed import StreamedWeights

__all__ = ["check_model", "compute_reference"]

_ROWS, _TOKENS, _LATER = 2, 5, 4


def compute_reference(
    model: Any,
    weights: StreamedWeights,
    *,
    compressed: Integers | None,
    rounding: Rounding,
) -> Reference:
    """Runs a model in torch.

    Args:
        model: a model of images and text of transformers in float32, on cpu.
        weights: the values of its parameters.
        compressed: which of them the programs hold as integers.
        rounding: what the programs' arithmetic does to values.
    """
    generator = torch.Generator().manual_seed(0)
    mark = int(model.config.image_token_id)
    vocabulary = int(model.config.get_text_config().vocab_size)

    def draw(count: int) -> list[int]:
        ids = torch.randint(2, min(vocabulary, mark) - 1, (count,), generator=generator)
        return [int(one) for one in ids]

    pictures = example_images(
        model, rows=_ROWS, fill=lambda shape: torch.randn(*shape, generator=generator)
    )
    places = count_image_tokens(model, pictures, rows=_ROWS)
    text = example_text(model, images=places, tokens=[draw(_TOKENS), draw(_TOKENS - 2)])
    later = torch.tensor([draw(_LATER) for _ in range(_ROWS)])
    inputs = {**text, **pictures}

    return compute(
        lambda: _logits(model, inputs, later, [_LATER]),
        inputs,
        later,
        weights=weights,
        compressed=compressed,
        rounding=rounding,
    )


def check_model(model: Any, reference: Reference) -> str | None:
    """Runs a model of programs on the reference's inputs, token by token and with swapped rows.

    Args:
        model: what NPUModelForImageTextToText.from_pretrained returns.
        reference: what torch computes.

    Returns:
        What differs from torch, in words; None if nothing does.
    """
    mask = reference.inputs["attention_mask"].bool()
    counts = torch.cat([mask, torch.ones_like(reference.ids).bool()], 1)
    found = _logits(model, reference.inputs, reference.ids, [1, 1, _LATER - 2], swaps=True)
    expected, rounded = reference.logits[counts], reference.rounded[counts]
    difference = differ(found[counts], expected, rounded, reference.precision)
    return None if difference is None else f"its logits: {difference}"


def _logits(
    model: Any,
    inputs: dict[str, torch.Tensor],
    later: torch.Tensor,
    pieces: list[int],
    *,
    swaps: bool = False,
) -> torch.Tensor:
    """Returns logits of texts, and of tokens that come later, in steps of so many.

    Args:
        model: transformers' or one of programs.
        inputs: of the first call.
        later: the tokens.
        pieces: how many of them each step reads.
        swaps: whether rows change places before each step.
    """
    given, mask = dict(inputs), inputs["attention_mask"]
    positions = _positions_after(model, inputs)
    output = model(**given, use_cache=True)
    found, start = [output.logits], 0
    cache = getattr(output, CACHE)
    order = torch.arange(len(later))
    for count in pieces:
        mask = torch.cat([mask, torch.ones_like(mask[:, :count])], 1)
        places = positions(mask, count)
        if swaps:
            cache.reorder_cache(torch.tensor([1, 0]))
            order = order.flip(0)
        step = model(
            input_ids=later[order, start : start + count],
            attention_mask=mask[order],
            position_ids=places[..., order, :],
            use_cache=True,
            **{CACHE: cache},
        )
        found.append(step.logits[order])
        start += count
    return torch.cat(found, 1)


def _positions_after(
    model: Any, inputs: dict[str, torch.Tensor]
) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """Returns what gives the positions of the last tokens of a mask, as generate does."""
    inner = getattr(model, model.base_model_prefix)

    def positions(mask: torch.Tensor, count: int) -> torch.Tensor:
        plain = (mask.cumsum(-1) - 1)[:, -count:]
        deltas = getattr(inner, "rope_deltas", None)
        return plain if deltas is None else (plain + deltas)[None].expand(3, -1, -1)

    return positions
