"""Engine-based generation from token ids, for generate calls that do not need transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from npu_llm.engine.engine import Engine, EngineOptions
from npu_llm.engine.sampling_params import SamplingParams, to_params
from npu_llm.generation.language_model import LanguageModel
from npu_llm.structured_output import given_form

__all__ = ["answer_by_engine"]


def answer_by_engine(
    model: LanguageModel, prompt: torch.Tensor, arguments: Mapping[str, Any]
) -> torch.Tensor | None:
    """Generates greedily with the engine.

    Sampling is left to transformers, because its draws follow torch.manual_seed. So are batches in
    pipelines with an engine for one sequence at a time.

    Args:
        model: the model.
        prompt: (batch, tokens) int64.
        arguments: the other arguments of generate.

    Returns:
        (batch, tokens + new) int64 on the prompt's device; None if the call needs transformers.
    """
    options = {**model.generation_defaults, **arguments}
    streamer, mask, tokenizer, _ = (
        options.pop(name, None) for name in ("streamer", "attention_mask", "tokenizer", "input_ids")
    )
    form = given_form(options)
    rows = _unpadded(prompt, mask)
    params = None if options.get("do_sample") else _params(model, prompt, options)
    is_apart = len(prompt) > 1 and (model.block_pool is None or streamer is not None)
    if params is None or rows is None or is_apart:
        return None
    is_padded = any(len(row) < prompt.shape[1] for row in rows)
    if is_padded and params.repetition_penalty != 1.0:
        return None  # transformers counts the padding too
    stop: Any = None
    if params.stop:
        if tokenizer is None:
            return None  # transformers raises its error
        from transformers.generation import StopStringCriteria  # a slow import, seldom needed

        stop = StopStringCriteria(tokenizer, list(params.stop))
    if streamer is not None:
        streamer.put(prompt.cpu())

    def on_token(answer: list[int], row: Sequence[int]) -> bool:
        if streamer is not None:
            streamer.put(torch.tensor(answer[-1:]))
        return stop is not None and bool(stop(torch.tensor([[*row, *answer]]), None))

    engine = Engine(model, EngineOptions.whole_batch(len(rows)))
    constraints = [None if form is None else model.constraints.make(form) for _ in rows]
    answers = engine.answer_all(rows, params, constraints=constraints, on_token=on_token)
    if streamer is not None:
        streamer.end()
    return torch.cat([prompt, _padded(answers, options).to(prompt.device)], 1)


def _params(
    model: LanguageModel, prompt: torch.Tensor, options: dict[str, Any]
) -> SamplingParams | None:
    """Returns the generation parameters; None if the engine does not support them."""
    batch, length = prompt.shape
    room = None if model.context_length is None else model.context_length - length
    if options.get("max_new_tokens") is None:
        options["max_new_tokens"] = (options.pop("max_length", None) or 0) - length
    params = to_params(options)
    if params is None or (room is not None and room < 1):
        return None
    if batch > 1 and params.stop and not params.stop_token_ids:
        return None  # transformers continues stopped rows until all have stopped
    if room is None:
        return params
    return replace(params, max_new_tokens=min(params.max_new_tokens, room))


def _unpadded(prompt: torch.Tensor, mask: torch.Tensor | None) -> list[list[int]] | None:
    """Returns the tokens of each row; None if the mask has more than left padding."""
    rows: list[list[int]] = prompt.tolist()
    if mask is None:
        return rows
    mask = mask.to("cpu", torch.int64)
    if not bool(mask[:, -1].all() and (mask.diff(dim=1) >= 0).all()):
        return None
    return [row[-count:] for row, count in zip(rows, mask.sum(1).tolist(), strict=True)]


def _padded(answers: Sequence[Sequence[int]], options: Mapping[str, Any]) -> torch.Tensor:
    """Returns answers padded to equal length: (batch, longest) int64."""
    pad, ends = options.get("pad_token_id"), options.get("eos_token_id") or 0
    if pad is None:
        pad = ends if isinstance(ends, int) else ends[0]
    longest = max(map(len, answers))
    return torch.tensor([[*answer, *[pad] * (longest - len(answer))] for answer in answers])
