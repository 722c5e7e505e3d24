"""Checks what a model with an encoder and a decoder is given: a program reads whatever it gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from npu_llm.errors import ContextError, OptionError

__all__ = ["check_encoder_inputs", "check_tokens"]


def check_encoder_inputs(
    main: str,
    values: Mapping[str, Any],
    *,
    taken: set[str],
    limit: int | None,
    vocabulary: int,
) -> dict[str, torch.Tensor]:
    """Returns what the encoder's program reads, by name.

    Args:
        main: the name of the main input: tokens (batch, length), samples (batch, length) or
            spectra (batch, bands, frames).
        values: what the caller passed.
        taken: which inputs the program has.
        limit: how many tokens it takes; None for no limit.
        vocabulary: token ids are below this.

    Raises:
        OptionError: [step-shape], [step-dtype], [token-range] for tokens that do not fit,
            [input-not-finite] for sound that is not finite.
        ContextError: [context-overflow] for more tokens than the encoder takes.
    """
    if main == "input_ids":
        found = check_tokens(main, values.get(main), vocabulary)
        if limit is not None and found.shape[1] > limit:
            raise ContextError(
                f"{main}: the encoder takes {limit:,} tokens; got {found.shape[1]:,}. Shorten or "
                "split the text.",
                code="context-overflow",
            )
    else:
        found = _sound(main, values.get(main))
    given = {main: found}
    if "attention_mask" in taken:
        mask = values.get("attention_mask")
        shape = (found.shape[0], found.shape[1])
        if mask is None:
            mask = torch.ones(shape, dtype=torch.int64)
        if tuple(mask.shape) != shape:
            raise OptionError(
                f"attention_mask: must have the shape of {main}, {shape}; got "
                f"{tuple(mask.shape)}. Pass the mask that came with it.",
                code="step-shape",
            )
        given["attention_mask"] = mask
    return given


def check_tokens(name: str, ids: Any, vocabulary: int) -> torch.Tensor:
    """Returns token ids (batch, length) int64 on the host.

    Raises:
        OptionError: [step-dtype] for anything but a tensor of integers, [step-shape] for another
            shape, [token-range] for an id that the model does not have.
    """
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point():
        got = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise OptionError(
            f"{name}: must be a tensor of integers; got {got}. Pass what the tokenizer returns "
            'with return_tensors="pt".',
            code="step-dtype",
        )
    if ids.dim() != 2 or ids.numel() == 0:
        raise OptionError(
            f"{name}: must have the shape (batch, tokens), with at least one token; got "
            f"{tuple(ids.shape)}. Pass one row for each sequence.",
            code="step-shape",
        )
    found = ids.to("cpu", torch.int64)
    low, high = (int(bound) for bound in torch.aminmax(found))
    if low < 0 or high >= vocabulary:
        raise OptionError(
            f"{name}: must lie between 0 and {vocabulary - 1}; got {low if low < 0 else high}. "
            "Encode the text with the model's own tokenizer.",
            code="token-range",
        )
    return found


def _sound(name: str, sound: Any) -> torch.Tensor:
    if not isinstance(sound, torch.Tensor) or not sound.is_floating_point():
        got = sound.dtype if isinstance(sound, torch.Tensor) else type(sound).__name__
        raise OptionError(
            f"{name}: must be a tensor of floats; got {got}. Pass what the processor returns with "
            'return_tensors="pt".',
            code="step-dtype",
        )
    found = sound.to("cpu", torch.float32)
    if not bool(found.isfinite().all()):
        raise OptionError(
            f"{name}: must be finite; got NaN or infinity. Check the sound that it was made of.",
            code="input-not-finite",
        )
    return found
