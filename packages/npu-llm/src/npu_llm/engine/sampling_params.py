"""SamplingParams: how an engine chooses the tokens of one answer, and when the answer ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SamplingParams"]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The settings of one answer, named as in vLLM.

    Attributes:
        max_new_tokens: maximum length of the answer in tokens, at least 1.
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
        stop: strings that end the answer; the client that decodes the tokens applies them.
        stop_token_ids: tokens that end the answer.
        logprobs: number of most likely tokens to report with each token; None to report neither
            those nor the token's log probability.
    """

    max_new_tokens: int = 512
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
