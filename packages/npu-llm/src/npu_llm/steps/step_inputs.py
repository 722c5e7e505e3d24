"""The inputs of one step, from what generate or a caller passes: defaults filled in, all checked.

A program reads whatever it gets: a token id beyond the vocabulary would yield zeros and no error.
"""

from __future__ import annotations

from typing import Any

import torch

from npu_llm.errors import OptionError

__all__ = ["check_prompt", "step_inputs"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def step_inputs(
    input_ids: torch.Tensor,
    *,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    logits_to_keep: int | torch.Tensor,
    past: int,
    vocabulary: int,
) -> dict[str, torch.Tensor]:
    """Returns the inputs that describe a step's tokens, each contiguous int64, on its device.

    The cache adds inputs that say where the tokens lie in it.

    Args:
        input_ids: (batch, tokens).
        attention_mask: (batch, past + tokens), 0 for padding; None for no padding.
        position_ids: (batch, tokens) or (1, tokens); None to count what is not padding.
        logits_to_keep: how many tokens, counted from the end, to return logits for, 0 for all; or
            indices.
        past: how many tokens the cache holds.
        vocabulary: token ids are below this.

    Raises:
        OptionError: [step-shape] for a tensor of another shape, [step-dtype] for anything but a
            tensor, or for token ids that are not integers, [token-range] for a token id that the
            model does not have, [kept-range] for an index that is not that of a token.
    """
    _check_ids(input_ids)
    batch, tokens = input_ids.shape
    low, high = (int(bound) for bound in torch.aminmax(input_ids))
    if low < 0 or high >= vocabulary:
        raise OptionError(
            f"input_ids: must lie between 0 and {vocabulary - 1}; got {low if low < 0 else high}. "
            "Encode the text with the model's own tokenizer.",
            code="token-range",
        )
    if attention_mask is None:
        attention_mask = torch.ones(batch, past + tokens, dtype=torch.int64)
    _check_shape("attention_mask", attention_mask, [(batch, past + tokens)])
    mask = attention_mask.to(torch.int64)
    if position_ids is None:
        position_ids = (mask.cumsum(-1) - 1).clamp_min(0)[:, -tokens:]
    _check_shape("position_ids", position_ids, [(batch, tokens), (1, tokens)])
    return {
        "input_ids": input_ids.to(torch.int64).contiguous(),
        "attention_mask": mask.contiguous(),
        "position_ids": position_ids.to(torch.int64).expand(batch, tokens).contiguous(),
        "logits_to_keep": _kept(logits_to_keep, tokens),
    }


def check_prompt(input_ids: Any, attention_mask: Any, *, past: int) -> None:
    """Checks what a generation starts from, before transformers uses it.

    Args:
        input_ids: (batch, tokens); None to start from nothing.
        attention_mask: (batch, tokens), or (batch, past + tokens) for a cache that is continued.
        past: how many tokens the cache holds.

    Raises:
        OptionError: [step-shape] or [step-dtype], as step_inputs does.
    """
    if input_ids is None:
        return
    _check_ids(input_ids)
    if attention_mask is not None:
        batch, tokens = input_ids.shape
        _check_shape("attention_mask", attention_mask, [(batch, tokens), (batch, past + tokens)])


def _check_ids(input_ids: Any) -> None:
    _check_tensor("input_ids", input_ids)
    if input_ids.dim() != 2 or input_ids.numel() == 0:
        raise OptionError(
            "input_ids: must have shape (batch, tokens) with at least one token; got "
            f"{tuple(input_ids.shape)}. Pass one row per sequence.",
            code="step-shape",
        )
    if input_ids.dtype not in _INTEGERS:
        raise OptionError(
            f"input_ids: must be integers, the ids of tokens; got {input_ids.dtype}. Pass "
            "what the tokenizer returned, or int64.",
            code="step-dtype",
        )


def _check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise OptionError(
            f"{name}: must be a tensor; got {type(value).__name__}. Pass "
            'the result of tokenizer(..., return_tensors="pt"), or make a tensor of it.',
            code="step-dtype",
        )


def _check_shape(name: str, tensor: Any, shapes: list[tuple[int, int]]) -> None:
    _check_tensor(name, tensor)
    if tuple(tensor.shape) not in shapes:
        raise OptionError(
            f"{name}: must have shape {shapes[0]}, for the cache's tokens and the new ones; got "
            f"{tuple(tensor.shape)}. Omit it, or extend it with each step.",
            code="step-shape",
        )


def _kept(logits_to_keep: int | torch.Tensor, tokens: int) -> torch.Tensor:
    """Returns the indices of the tokens whose logits are wanted: (kept,) int64 on cpu."""
    if not isinstance(logits_to_keep, torch.Tensor):
        first = max(tokens - logits_to_keep, 0) if logits_to_keep else 0
        return torch.arange(first, tokens)
    indices = logits_to_keep.to("cpu", torch.int64)
    wrong = (indices < -tokens) | (indices >= tokens)
    if indices.dim() != 1 or bool(wrong.any()):
        raise OptionError(
            f"logits_to_keep: must be indices of the {tokens} tokens of this step; got "
            f"{logits_to_keep.tolist()}. Pass a number, or a vector of indices.",
            code="kept-range",
        )
    return torch.where(indices < 0, indices + tokens, indices)
