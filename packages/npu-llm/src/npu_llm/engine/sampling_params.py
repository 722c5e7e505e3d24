"""SamplingParams: sampling settings and end conditions, also from generate's arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SamplingParams", "to_params"]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The settings of one answer, named as in vLLM.

    Attributes:
        max_new_tokens: maximum length of the answer in tokens, at least 1.
        min_new_tokens: minimum number of tokens before `stop_token_ids` can be sampled.
        temperature: divisor of the logits; 0.0 for greedy search.
        top_k: number of most likely tokens to sample from; 0 for all.
        top_p: probability mass of the most likely tokens to sample from.
        min_p: minimum probability of a sampled token, as a share of the most likely one's.
        frequency_penalty: subtracted from a token's logit for each occurrence in the answer.
        presence_penalty: subtracted from a token's logit if it occurs in the answer.
        repetition_penalty: divisor of positive logits of tokens in prompt and answer, and factor
            of negative ones.
        logit_bias: values added to logits, by token.
        seed: seed of the answer's random numbers; None for a new one from the system.
        stop: strings that end the answer, applied by the client that decodes the tokens.
        stop_token_ids: tokens that end the answer.
        logprobs: number of most likely tokens to report with each token; None to report no log
            probabilities.
        prompt_logprobs: the same for the prompt's tokens; disables cached prefixes for it.
    """

    max_new_tokens: int = 512
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None


# Values of generation configs that do not change the next token, besides None and False.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "use_cache": (True,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "length_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "diversity_penalty": (0.0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "min_length": (0,),
    "no_repeat_ngram_size": (0,),
    "max_length": (20,),
    "num_beam_groups": (1,),
}
_IGNORED = frozenset(("bos_token_id", "pad_token_id", "transformers_version", "_from_model_config"))
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
_SAME = (
    "max_new_tokens", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed",
    "logprobs",
)  # fmt: skip
_OTHER = ("do_sample", "eos_token_id", "suppress_tokens", "stop_strings", "stop", "logit_bias")
_TOP_K = 50  # transformers' default
_BOUNDS: dict[str, Callable[[Any], bool]] = {
    "temperature": lambda value: value >= 0,
    "top_k": lambda value: value >= 0,
    "top_p": lambda value: 0 < value <= 1,
    "min_p": lambda value: 0 <= value <= 1,
    "repetition_penalty": lambda value: value > 0,
    "max_new_tokens": lambda value: value >= 1,
}


def to_params(options: Mapping[str, Any]) -> SamplingParams | None:
    """Returns the parameters for arguments of generate; None if only transformers supports them.

    Besides those of transformers there are `stop`, `frequency_penalty`, `presence_penalty`,
    `logit_bias` and `logprobs`, as in SamplingParams.

    Args:
        options: a generation config, updated by the arguments of a call.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        is_known = name in (*_SAMPLING, *_SAME, *_OTHER) or name in _IGNORED
        is_empty = value is False or (isinstance(value, (list, tuple, dict)) and not value)
        if not is_known and not is_empty and value not in _WITHOUT_EFFECT.get(name, ()):
            return None
    if not all(_is_valid(name, given[name]) for name in _BOUNDS.keys() & given.keys()):
        return None  # transformers raises its error
    found = {name: given[name] for name in _SAME if name in given}
    if given.get("do_sample"):
        found |= {"top_k": _TOP_K} | {name: given[name] for name in _SAMPLING if name in given}
    else:
        found["temperature"] = 0.0
    ends = given.get("eos_token_id", ())
    stop = given.get("stop_strings", given.get("stop", ()))
    return SamplingParams(
        **found,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset([ends] if isinstance(ends, int) else ends),
        logit_bias={
            **given.get("logit_bias", {}),
            **dict.fromkeys(given.get("suppress_tokens", ()), -math.inf),
        },
    )


def _is_valid(name: str, value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and _BOUNDS[name](value)
