"""Attention over packed sequences, pages and slots of a cache, and what belongs to it.

Source: Vaswani et al., Attention Is All You Need, 2017; Kwon et al., PagedAttention, 2023 (blocks);
Su et al., RoFormer, 2021 (rotary embedding).
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import scaled_dot_product_attention

__all__ = [
    "attention_of_lengths",
    "attention_with_logsumexp",
    "causal_attention_of_lengths",
    "copy_rows",
    "paged_attention",
    "rotate",
    "rotate_halves",
    "scaled_masked_softmax",
    "token_scores",
    "token_values",
]


def attention_of_lengths(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    is_causal: bool = False,
) -> torch.Tensor:
    """Attention within each of several sequences that lie one after another.

    Args:
        query: (tokens, heads, head size).
        key: as query.
        value: as query.
        lengths: tokens of each sequence; their sum is `tokens`.
        is_causal: whether a token sees those before it alone.
    """
    parts = zip(*(torch.split(tensor, lengths) for tensor in (query, key, value)), strict=True)
    results = [
        scaled_dot_product_attention(
            q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=is_causal
        ).transpose(0, 1)
        for q, k, v in parts
    ]
    return torch.cat(results)


def causal_attention_of_lengths(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[int]
) -> torch.Tensor:
    """`attention_of_lengths`, where a token sees those before it alone."""
    return attention_of_lengths(query, key, value, lengths, is_causal=True)


def attention_with_logsumexp(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and the logarithm of each row's sum of exponentials.

    Args:
        query: (batch, length, heads, head size).
        key: as query.
        value: as query.
        is_causal: whether a token sees those before it alone.

    Returns:
        As query, and (batch, heads, length).
    """
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~mask, -math.inf)
    sums = scores.logsumexp(-1)
    return ((scores - sums.unsqueeze(-1)).exp() @ v).transpose(1, 2), sums


def token_scores(
    query: torch.Tensor, keys: torch.Tensor, locations: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Scores of one new token of each sequence against its keys, wherever these lie.

    Args:
        query: (batch, heads, head size).
        keys: (slots, heads, head size), of all sequences.
        locations: (batch, longest), the slots of each sequence.
        lengths: (batch,), how many of these are used.

    Returns:
        (batch, heads, longest); 0 past a sequence's length.
    """
    found = keys[locations]
    scores = torch.einsum("bhd,blhd->bhl", query, found) / math.sqrt(query.shape[-1])
    return scores.masked_fill(~_used(locations, lengths).unsqueeze(1), 0)


def token_values(
    scores: torch.Tensor, values: torch.Tensor, locations: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """The sums of values, weighted by the softmax of `token_scores`.

    Args:
        scores: (batch, heads, longest).
        values: (slots, heads, head size).
        locations: (batch, longest).
        lengths: (batch,), at least 1 each.

    Returns:
        (batch, heads, head size).
    """
    hidden = ~_used(locations, lengths).unsqueeze(1)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("bhl,blhd->bhd", weights, values[locations])


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Attention of one new token of each sequence over the blocks that hold its past.

    Args:
        query: (batch, heads, head size).
        key_cache: (blocks, block size, heads, head size).
        value_cache: as key_cache.
        blocks: (batch, most blocks), which blocks a sequence has, in order.
        lengths: (batch,), tokens of each.

    Returns:
        As query.
    """
    slots = blocks.unsqueeze(-1) * key_cache.shape[1] + torch.arange(
        key_cache.shape[1], device=blocks.device
    )
    locations = slots.flatten(1)
    scores = token_scores(query, key_cache.flatten(0, 1), locations, lengths)
    return token_values(scores, value_cache.flatten(0, 1), locations, lengths)


def copy_rows(key: torch.Tensor, destinations: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """Writes the keys of new tokens into their slots of a cache, which is returned.

    Args:
        key: (tokens, heads, head size).
        destinations: (tokens,), int64, no slot twice.
        cache: (slots, heads, head size).
    """
    return cache.index_copy_(0, destinations, key)


def scaled_masked_softmax(
    input: torch.Tensor,  # noqa: A002  # the interface's name
    mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """The softmax of `scale * input` where mask is false.

    Args:
        input: (batch, heads, length, keys).
        mask: (batch, 1, length, keys), bool; no row is true throughout.
        scale: of the scores.
    """
    return (input * scale).masked_fill(mask, -10000.0).softmax(-1)


def rotate(
    x1: torch.Tensor,
    x2: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    conjugate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turns the points (x1, x2) by an angle, or back.

    Args:
        x1: (batch, length, heads, half a head).
        x2: as x1.
        cos: (length, 1, half a head).
        sin: as cos.
        conjugate: whether to turn back.
    """
    sine = -sin if conjugate else sin
    return x1 * cos - x2 * sine, x1 * sine + x2 * cos


def rotate_halves(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotary embedding of queries and keys, whose halves are the points' coordinates.

    Args:
        query: (batch, heads, length, head size).
        key: (batch, key heads, length, head size).
        cos: (length, head size).
        sin: as cos.
    """

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    return turned(query), turned(key)


def _used(locations: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(locations.shape[1], device=locations.device)
    return positions < lengths.unsqueeze(1)
