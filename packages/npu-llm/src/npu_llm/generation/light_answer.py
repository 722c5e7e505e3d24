"""Answers one prompt without transformers, where its generation config asks for nothing unusual.

The tokens are those that transformers' generate gives for the same arguments and seed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from npu_llm.decoding.loop import Stops, tokens
from npu_llm.generation.step_model import StepModel

__all__ = ["Sampling", "answer", "read_sampling"]

# What a generation config may say without changing which token comes next.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "use_cache": (True,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "repetition_penalty": (1.0,),
    "length_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "diversity_penalty": (0.0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "min_length": (0,),
    "no_repeat_ngram_size": (0,),
    "max_length": (20,),
}
_ANY = ("bos_token_id", "transformers_version", "_from_model_config")
_KNOWN = ("do_sample", "temperature", "top_k", "top_p", "eos_token_id", "pad_token_id")
_TOP_K = 50  # transformers' default


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen, and which tokens end an answer.

    Attributes:
        do_sample: whether to draw it; otherwise it is the most likely one.
        temperature, top_k, top_p: as transformers defines them; top_k 0 and top_p 1 change nothing.
        ends: tokens that end an answer.
        pad: what follows the end of a row.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = _TOP_K
    top_p: float = 1.0
    ends: tuple[int, ...] = ()
    pad: int = 0

    def warped(self, _: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits (rows, vocabulary) float32 as they are drawn from."""
        if not self.do_sample:
            return logits
        scores = logits
        if self.temperature != 1.0:
            scores = scores / self.temperature
        if self.top_k:
            count = min(self.top_k, scores.shape[-1])
            scores = scores.masked_fill(scores < torch.topk(scores, count)[0][..., -1:], -torch.inf)
        if self.top_p < 1.0:
            ordered, places = torch.sort(scores, descending=False)
            share = ordered.softmax(dim=-1).cumsum(dim=-1)
            removed = share <= (1 - self.top_p)
            removed[..., -1:] = False
            scores = scores.masked_fill(removed.scatter(1, places, removed), -torch.inf)
        return scores


def read_sampling(folder: Path) -> Sampling | None:
    """Reads a saved generation config; returns None if transformers is needed for what it says.

    Args:
        folder: holds generation_config.json.
    """
    given = json.loads((folder / "generation_config.json").read_text())
    for name, value in given.items():
        is_plain = value is None or value is False or name in (*_ANY, *_KNOWN)
        if not is_plain and value not in _WITHOUT_EFFECT.get(name, ()):
            return None
    known = {name: given[name] for name in _KNOWN if given.get(name) is not None}
    ends = known.pop("eos_token_id", ())
    pad = known.pop("pad_token_id", None)
    ends = (ends,) if isinstance(ends, int) else tuple(ends)
    # As in transformers, a row that has ended is filled with the first end token.
    first = ends[0] if ends else 0
    return Sampling(**known, ends=ends, pad=first if pad is None else pad)


def answer(
    model: StepModel,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    streamer: Any,
) -> None:
    """Generates until an end token, the given number of tokens, or the end of the context.

    Args:
        model: the model.
        prompt: its tokens.
        sampling: how to choose.
        max_new_tokens: at least 1.
        streamer: one of transformers: `put` is called with the prompt (1, tokens) int64, and with
            each token (1,), then `end`.

    Raises:
        ContextError: [context-overflow] when the prompt does not fit.
    """
    ids = torch.tensor([list(prompt)], dtype=torch.int64)
    model.check_context(ids.shape[1])
    cache = model.new_cache()
    limit = ids.shape[1] + max_new_tokens
    if model.context_length is not None:
        limit = min(limit, max(model.context_length, ids.shape[1] + 1))

    def first(new: torch.Tensor, **given: torch.Tensor | None) -> torch.Tensor:
        return model.step(new, cache, logits_to_keep=1, **given)

    steps = tokens(
        first,
        ids,
        cache=cache,
        attention_mask=None,
        position_ids=None,
        logits_processor=sampling.warped,
        stops=Stops(sampling.ends, limit),
        do_sample=sampling.do_sample,
        pad=sampling.pad,
    )
    streamer.put(ids)
    with torch.inference_mode():
        for chosen in steps:
            streamer.put(chosen)
    streamer.end()
