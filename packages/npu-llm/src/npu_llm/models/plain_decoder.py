"""A known decoder in plain torch, as a reference for the kernels that run its step.

It shares only the description with npu_llm.models.known_steps: no draft, fusion or packing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch.nn import functional

from npu_llm.models.known_steps import Decoder, Rope
from npu_llm.progress import Advance
from npu_llm.verification.reference import Rounding
from npu_ops.kernel_programs.reference import ACTIVATIONS

__all__ = ["Parameters", "plain_logits"]


class Parameters(Protocol):
    """The values of a model's parameters by transformers' names."""

    def read(self, name: str) -> torch.Tensor:
        """Returns a parameter in float32; valid until the next call."""

    def rows(self, name: str, indices: torch.Tensor) -> torch.Tensor:
        """Returns some rows of a matrix (indices, columns) float32."""

    def parts(self, name: str) -> Iterator[torch.Tensor]:
        """Yields a matrix in float32 in groups of rows; the whole may not fit into memory."""


def plain_logits(
    decoder: Decoder,
    parameters: Parameters,
    ids: torch.Tensor,
    rows: tuple[int, ...],
    *,
    rounding: Rounding,
    on_progress: Advance = lambda share, doing: None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the logits of some tokens, in float32 and with a device's rounding.

    Args:
        decoder: the model.
        parameters: its parameters; each is read once, in order of use.
        ids: (tokens,) int64.
        rows: indices of the tokens whose logits are returned.
        rounding: rounding of products, sums, and weights or their rows in the second result.
        on_progress: called with the share done, 0.0 to 1.0, and the current position.

    Returns:
        Both (rows, vocabulary) float32.
    """
    exact, rounded = _Runs(decoder, parameters, rounding).logits(ids, rows, on_progress)
    return exact, rounded


class _Runs:
    """Two runs at once: exact and rounded; streams are (2, tokens, width)."""

    def __init__(self, decoder: Decoder, parameters: Parameters, rounding: Rounding) -> None:
        self._decoder = decoder
        self._parameters = parameters
        self._rounding = rounding

    def logits(
        self, ids: torch.Tensor, rows: tuple[int, ...], on_progress: Advance
    ) -> torch.Tensor:
        model, table = self._decoder, "model.embed_tokens.weight"
        found = self._parameters.rows(table, ids)
        stream = self._rounded(torch.stack([found, found])) * model.embedding_factor
        layers = len(model.windows)
        for number in range(layers):
            on_progress(number / (layers + 1), f"layer {number + 1:,} of {layers:,}")
            stream = self._layer(number, stream)
        stream = self._norm(stream[:, list(rows)], "model.norm")
        on_progress(layers / (layers + 1), "logits")
        head = self._parameters.parts(table if model.is_tied else "lm_head.weight")
        logits = torch.cat([self._times(stream, part) for part in head], -1)
        return _capped(logits, model.logits_cap) * model.logits_factor

    def _layer(self, number: int, stream: torch.Tensor) -> torch.Tensor:
        model, name = self._decoder, f"model.layers.{number}"
        before, after = model.norms != "after", model.norms != "before"
        # The names of the norms around the feed-forward layer.
        first = "pre_feedforward_layernorm" if after else "post_attention_layernorm"
        rows = self._norm(stream, f"{name}.input_layernorm") if before else stream
        rows = self._attention(number, rows)
        if after:
            rows = self._norm(rows, f"{name}.post_attention_layernorm")
        stream = self._sum(stream, rows)
        rows = self._norm(stream, f"{name}.{first}") if before else stream
        rows = self._feed_forward(f"{name}.mlp", rows)
        if after:
            rows = self._norm(rows, f"{name}.post_feedforward_layernorm")
        return self._sum(stream, rows)

    def _attention(self, number: int, rows: torch.Tensor) -> torch.Tensor:
        model, name = self._decoder, f"model.layers.{number}.self_attn"
        sizes = [model.heads * model.head_dim] + 2 * [model.kv_heads * model.head_dim]
        if model.is_joined:
            q, k, v = torch.split(self._linear(rows, f"{name}.qkv_proj", "qkv"), sizes, -1)
        else:
            q, k, v = (self._linear(rows, f"{name}.{one}_proj", "qkv") for one in "qkv")
        q = self._placed(number, q, f"{name}.q_norm")
        k = self._placed(number, k, f"{name}.k_norm")
        v = v.reshape(*v.shape[:-1], -1, model.head_dim)
        group = model.heads // model.kv_heads
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))  # (2, heads, tokens, size)
        k, v = (one.repeat_interleave(group, 1) for one in (k, v))
        scores = _capped(torch.matmul(q, k.transpose(2, 3)) * model.scale, model.score_cap)
        index = torch.arange(rows.shape[1])
        distance = index[:, None] - index
        is_hidden = (distance < 0) | (distance >= (model.windows[number] or len(index)))
        shares = scores.masked_fill(is_hidden, -torch.inf).softmax(-1)
        found = self._rounded(torch.matmul(shares, v)).transpose(1, 2).flatten(2)
        return self._linear(found, f"{name}.o_proj", "output")

    def _placed(self, number: int, rows: torch.Tensor, norm: str) -> torch.Tensor:
        """Normalizes and rotates queries or keys; returns (2, tokens, heads, size)."""
        model = self._decoder
        heads = rows.reshape(*rows.shape[:-1], -1, model.head_dim)
        if model.head_norms == "head":
            heads = self._norm(heads, norm)
        elif model.head_norms == "whole":
            heads = self._norm(rows, norm).view_as(heads)
        rope = model.ropes[number]
        return heads if rope is None else self._rounded(_rotated(heads, rope))

    def _feed_forward(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        model = self._decoder
        if model.is_joined:
            gate, up = self._linear(rows, f"{name}.gate_up_proj", "mlp").chunk(2, -1)
        else:
            gate, up = (self._linear(rows, f"{name}.{one}_proj", "mlp") for one in ("gate", "up"))
        inner = ACTIVATIONS[model.activation](gate) * up
        return self._linear(inner, f"{name}.down_proj", "mlp")

    def _linear(self, rows: torch.Tensor, name: str, biases: str) -> torch.Tensor:
        result = self._product(rows, f"{name}.weight")
        if biases not in self._decoder.biases:
            return result
        return self._rounded(result + self._parameters.read(f"{name}.bias"))

    def _product(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        return self._times(rows, self._parameters.read(name))

    def _times(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        how = self._rounding
        if how.activation_group:
            # Kernels multiply integers: the rounding is in the rows' scales, not in the weight.
            both = torch.stack([rows[0], how.quantize(rows[1])])
            return self._rounded(functional.linear(both, weight))
        exact = functional.linear(rows[0], weight)
        return torch.stack([exact, how.round(functional.linear(rows[1], how.round(weight)))])

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        size = rows.square().mean(-1, keepdim=True) + self._decoder.eps
        weight = self._parameters.read(f"{name}.weight") + self._decoder.added
        return rows * size.rsqrt() * weight

    def _sum(self, stream: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self._rounded(torch.add(stream, rows, alpha=self._decoder.residual_factor))

    def _rounded(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([rows[0], self._rounding.round(rows[1])])


def _rotated(heads: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Rotates (2, tokens, heads, size) by the tokens' positions."""
    pairs = len(rope.inverse)
    angles = torch.arange(heads.shape[1]).float()[:, None, None] * rope.inverse
    cosine, sine = angles.cos() * rope.factor, angles.sin() * rope.factor
    first, second, rest = heads.tensor_split((pairs, 2 * pairs), -1)
    turned = (first * cosine - second * sine, second * cosine + first * sine, rest)
    return torch.cat(turned, -1)


def _capped(values: torch.Tensor, cap: float | None) -> torch.Tensor:
    return values if cap is None else cap * torch.tanh(values / cap)
