"""The decoding loop of `generate`, for sampling, custom logits processors and encoder-decoders.

The engine (npu_llm.engine.engine) generates greedy answers. The loop of transformers prepares each
step for every feature of generate, which for a small model takes as long as the step itself. This
loop runs the step on buffers that grow by one token, calls transformers' logits processors and
stopping criteria, and handles length limits and end tokens itself. It samples the same tokens as
transformers.
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
# Up to this number of logits, one thread is faster than waking OpenMP's others.
_MOST_ON_ONE_THREAD = 1 << 20


@dataclass(frozen=True)
class Stops:
    """Conditions that end an answer.

    Attributes:
        ends: end tokens.
        limit: maximum number of tokens of prompt and answer; None for no limit.
        others: stopping criteria of transformers, called after each token.
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
    """Whether `decode` supports all requested options.

    Args:
        input_ids: (batch, tokens); continuing from new tokens alone needs transformers' loop.
        config: the prepared generation config.
        arguments: the arguments that generate passes to the model.
        known: names of the arguments that the model's first step accepts.
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
        stopping_criteria: stopping criteria of transformers.
        streamer: a streamer of transformers.
        result: name of the model's result class.
        search: other arguments of `tokens`.

    Returns:
        The result of transformers' loop: (batch, tokens + new) int64, or an object with it and the
        cache.
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
    """Yields the next token of each row until every row has ended.

    Args:
        first: runs the prompt's step on input_ids, attention_mask and position_ids of the tokens
            that are not in the cache; returns logits (batch, 1, vocabulary).
        input_ids: (batch, tokens) int64, including the tokens in the cache.
        cache: the model's cache, filled during generation.
        attention_mask: (batch, tokens); all ones if None.
        position_ids: (batch, tokens), or positions of the new tokens only; None to derive them from
            the mask.
        logits_processor: logits processors with the interface of transformers; may be None or
            empty.
        stops: conditions that end the rows.
        do_sample: whether to sample instead of taking the most likely token.
        pad: token that fills a row after its end.
        then: runs each later step; has the signature of npu_llm.kv_cache.cache.run_step.

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
    """Returns the next token of each row: (batch,) int64 on cpu."""
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
    """Converts transformers' stopping criteria to Stops."""
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
    """Returns the token that fills a row after its end."""
    return 0 if config.pad_token_id is None else int(config.pad_token_id)


def _grown(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """Returns a tensor with longer rows that start with the given ones."""
    grown = tensor.new_zeros(tensor.shape[0], max(length, tensor.shape[1] + 1))
    grown[:, : tensor.shape[1]] = tensor
    return grown


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch's host ops only on the calling thread, inside the block.

    After a shared op, such as one on 50,000 logits, OpenMP's threads spin for some milliseconds and
    occupy the processors that the next step needs: a token of Whisper base took 7.4 ms with them
    and 4.9 without (two Zen 5 cores, 2026-11-25). torch keeps this setting per thread, so other
    threads are not affected.
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
