"""The loop of transformers' generate, for sampling, custom logits processors and encoder-decoders.

Greedy answers come from npu_llm.engine.engine. transformers' own loop prepares each step for
everything that generate allows, which costs a small model as much as the step itself. This one runs
the step on buffers that grow by one token, calls transformers' logits processors and stopping
criteria, and stops by itself at a length and at end tokens. Its draws are those of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from npu_llm.cache_names import CACHE
from npu_llm.kv_cache.cache import StepCache, run_step
from npu_ops.kernel_programs.sampler import argmax

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers.generation import StoppingCriteria

__all__ = ["Stops", "can_decode", "decode", "one_thread", "pad_of", "stops_of", "tokens"]

_KNOWN = frozenset(
    ("attention_mask", "cache_position", "logits_to_keep", CACHE, "position_ids", "use_cache")
)
# Ops on at most this many logits take less time on one thread than OpenMP's others cost a step.
_MOST_ON_ONE_THREAD = 1 << 20


@dataclass(frozen=True)
class Stops:
    """When an answer ends.

    Attributes:
        ends: the tokens after which it ends.
        limit: how many tokens prompt and answer have at most; None for any number.
        others: criteria of transformers, called after each token.
    """

    ends: Sequence[int] = ()
    limit: int | None = None
    others: Sequence[StoppingCriteria] = ()


def can_decode(
    input_ids: torch.Tensor,
    config: GenerationConfig,
    arguments: Mapping[str, Any],
    *,
    known: frozenset[str] = _KNOWN,
) -> bool:
    """Whether `decode` supports everything that is asked for.

    Args:
        input_ids: (batch, tokens); only transformers' loop continues from the new tokens alone.
        config: the prepared generation config.
        arguments: what generate would pass to the model.
        known: names of those that the model's first step takes.
    """
    asked = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
    if any(getattr(config, name, None) for name in asked) or not config.use_cache:
        return False
    unknown = {name for name, value in arguments.items() if value is not None} - known
    cache = arguments.get(CACHE)
    if unknown or not isinstance(cache, StepCache):
        return False
    return cache.get_seq_length() < input_ids.shape[1]


def decode(
    first: Callable[..., torch.Tensor],
    input_ids: torch.Tensor,
    *,
    cache: StepCache,
    config: GenerationConfig,
    stopping_criteria: Sequence[StoppingCriteria],
    streamer: Any | None = None,
    result: str = "GenerateDecoderOnlyOutput",
    **search: Any,
) -> Any:
    """Generates until every row has ended.

    Args:
        first: as for `tokens`.
        input_ids: as for `tokens`.
        cache: as for `tokens`.
        config: the prepared generation config.
        stopping_criteria: those of transformers.
        streamer: a streamer of transformers.
        result: the name of its class of results.
        search: the other arguments of `tokens`.

    Returns:
        What transformers' own loop returns: (batch, tokens + new) int64, or that and the cache.
    """
    columns = [input_ids]
    steps = tokens(
        first,
        input_ids,
        cache=cache,
        stops=stops_of(stopping_criteria),
        do_sample=bool(config.do_sample),
        pad=pad_of(config),
        **search,
    )
    for chosen in steps:
        columns.append(chosen[:, None].to(input_ids.device))
        if streamer is not None:
            streamer.put(chosen)
    if streamer is not None:
        streamer.end()
    sequences = torch.cat(columns, 1)
    if not config.return_dict_in_generate:
        return sequences
    import transformers.generation

    return getattr(transformers.generation, result)(sequences=sequences, **{CACHE: cache})


def tokens(
    first: Callable[..., torch.Tensor],
    input_ids: torch.Tensor,
    *,
    cache: StepCache,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    logits_processor: Any,
    stops: Stops,
    do_sample: bool,
    pad: int,
    then: Callable[..., torch.Tensor] = run_step,
) -> Iterator[torch.Tensor]:
    """Yields the next token of each row, until every row has ended.

    Args:
        first: runs the prompt's step on input_ids, attention_mask and position_ids of the tokens
            that the cache does not hold; returns logits (batch, 1, vocabulary).
        input_ids: (batch, tokens) int64, including the cache's tokens.
        cache: the model's; filled as tokens come.
        attention_mask: (batch, tokens); None for ones.
        position_ids: (batch, tokens) or those of the new tokens; None to count them by the mask.
        logits_processor: changes scores, called as those of transformers; None or empty to keep
            them.
        stops: when rows end.
        do_sample: whether to draw tokens instead of taking the most likely one.
        pad: what follows the end of a row.
        then: runs each later step; takes and returns what npu_llm.kv_cache.cache.run_step does.

    Yields:
        (batch,) int64 on cpu.
    """
    device = input_ids.device
    batch, length = input_ids.shape
    ends, limit = list(stops.ends), stops.limit
    room = length + 64 if limit is None else limit
    sequences = _grown(input_ids.cpu(), room)
    given = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    mask = _grown(given.cpu().to(torch.int64), room)
    new = input_ids[:, cache.get_seq_length() :]
    if position_ids is None:
        position = mask.sum(-1, keepdim=True)
    else:
        position_ids = position_ids[:, -new.shape[1] :].expand_as(new)
        position = position_ids[:, -1:].cpu() + 1
    last = torch.zeros(1, dtype=torch.int64)
    is_running = torch.ones(batch, dtype=torch.bool)
    logits = first(new, attention_mask=given, position_ids=position_ids)
    while True:
        chosen = _choose(logits[:, -1], sequences[:, :length], logits_processor, do_sample, device)
        if ends and not bool(is_running.all()):
            chosen = torch.where(is_running, chosen, pad)
        if length == sequences.shape[1]:
            sequences, mask = _grown(sequences, 2 * length), _grown(mask, 2 * length)
        sequences[:, length] = chosen
        mask[:, length] = 1
        length += 1
        yield chosen
        if ends:
            is_running &= ~torch.isin(chosen, torch.tensor(ends))
        for criterion in stops.others:
            is_running &= ~criterion(sequences[:, :length].to(device), None).cpu()
        if (limit is not None and length >= limit) or not bool(is_running.any()):
            return
        values = {
            "input_ids": chosen[:, None],
            "attention_mask": mask[:, :length].contiguous(),
            "position_ids": position.clone(),
            "logits_to_keep": last,
        }
        logits = then(cache, values, past=length - 1, device="cpu")
        position += 1


def _choose(
    logits: torch.Tensor,
    sequences: torch.Tensor,
    processors: Any,
    do_sample: bool,
    device: torch.device,
) -> torch.Tensor:
    """The next token of each row: (batch,) int64 on cpu."""
    if not processors and not do_sample:
        return torch.as_tensor(argmax(logits))
    with one_thread() if logits.numel() <= _MOST_ON_ONE_THREAD else nullcontext():
        scores = logits
        if processors:
            scores = processors(sequences.to(device), logits.to(device))
        if not do_sample:
            return torch.as_tensor(argmax(scores))
        shares = torch.nn.functional.softmax(scores, dim=-1)
        return torch.multinomial(shares, num_samples=1)[:, 0].cpu()


def stops_of(criteria: Sequence[StoppingCriteria]) -> Stops:
    """Returns when an answer ends by criteria of transformers."""
    from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

    ends: list[int] = []
    limit: int | None = None
    others = []
    for criterion in criteria:
        if type(criterion) is MaxLengthCriteria:
            length = int(criterion.max_length)
            limit = length if limit is None else min(limit, length)
        elif type(criterion) is EosTokenCriteria:
            ends += criterion.eos_token_id.flatten().tolist()
        else:
            others.append(criterion)
    return Stops(ends, limit, others)


def pad_of(config: GenerationConfig) -> int:
    """Returns what follows the end of a row."""
    return 0 if config.pad_token_id is None else int(config.pad_token_id)


def _grown(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """Returns a tensor with longer rows that begin with the given ones."""
    grown = tensor.new_zeros(tensor.shape[0], max(length, tensor.shape[1] + 1))
    grown[:, : tensor.shape[1]] = tensor
    return grown


@contextmanager
def one_thread() -> Iterator[None]:
    """Has torch's ops on the host run on the calling thread alone.

    OpenMP's threads spin for some milliseconds after an op that they shared, such as one on 50,000
    logits, and meanwhile take the processors that the next step needs: a token of Whisper base took
    7.4 ms with them and 4.9 without (two Zen 5 cores, 2026-11-25). torch keeps the number for each
    thread, so that other threads' ops stay as they are.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
