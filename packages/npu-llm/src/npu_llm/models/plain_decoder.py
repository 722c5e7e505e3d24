"""A known decoder in plain torch, with which the kernels that run its step are compared.

It shares only the description with npu_llm.models.known_steps: no draft, no fusion, no packing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

from npu_llm.models.known_steps import Decoder, Rope
from npu_ops.kernel_programs.reference import ACTIVATIONS

__all__ = ["plain_logits"]


def plain_logits(
    decoder: Decoder,
    parameters: Mapping[str, torch.Tensor],
    ids: torch.Tensor,
    rows: tuple[int, ...],
) -> torch.Tensor:
    """Computes the logits of some tokens.

    Args:
        decoder: the model.
        parameters: its parameters, by transformers' names for them.
        ids: (tokens,) int64.
        rows: which tokens' logits are wanted.

    Returns:
        (rows, vocabulary) float32.
    """
    return _Run(decoder, parameters).logits(ids, rows)


class _Run:
    def __init__(self, decoder: Decoder, parameters: Mapping[str, torch.Tensor]) -> None:
        self._decoder = decoder
        self._parameters = parameters

    def logits(self, ids: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor:
        model = self._decoder
        table = self._parameters["model.embed_tokens.weight"]
        stream = functional.embedding(ids, table) * model.embedding_factor
        for number in range(len(model.windows)):
            stream = self._layer(number, stream)
        stream = self._norm(stream[list(rows)], "model.norm")
        head = table if model.is_tied else self._parameters["lm_head.weight"]
        logits = functional.linear(stream, head)
        return _capped(logits, model.logits_cap) * model.logits_factor

    def _layer(self, number: int, stream: torch.Tensor) -> torch.Tensor:
        model, name = self._decoder, f"model.layers.{number}"
        attended = self._attention
        if model.norms == "before":
            rows = attended(number, self._norm(stream, f"{name}.input_layernorm"))
            stream = torch.add(stream, rows, alpha=model.residual_factor)
            rows = self._feed_forward(name, self._norm(stream, f"{name}.post_attention_layernorm"))
            return torch.add(stream, rows, alpha=model.residual_factor)
        is_both = model.norms == "both"
        rows = self._norm(stream, f"{name}.input_layernorm") if is_both else stream
        rows = self._norm(attended(number, rows), f"{name}.post_attention_layernorm")
        stream = torch.add(stream, rows, alpha=model.residual_factor)
        rows = self._norm(stream, f"{name}.pre_feedforward_layernorm") if is_both else stream
        rows = self._norm(self._feed_forward(name, rows), f"{name}.post_feedforward_layernorm")
        return torch.add(stream, rows, alpha=model.residual_factor)

    def _attention(self, number: int, rows: torch.Tensor) -> torch.Tensor:
        model, name = self._decoder, f"model.layers.{number}.self_attn"
        sizes = [model.heads * model.head_dim] + 2 * [model.kv_heads * model.head_dim]
        if model.is_joined:
            q, k, v = self._linear(rows, f"{name}.qkv_proj").split(sizes, -1)
        else:
            q, k, v = (self._linear(rows, f"{name}.{one}_proj") for one in "qkv")
        q = self._placed(number, q, f"{name}.q_norm")
        k = self._placed(number, k, f"{name}.k_norm")
        group = model.heads // model.kv_heads
        k, v = (
            one.unflatten(-1, (-1, model.head_dim)).transpose(0, 1).repeat_interleave(group, 0)
            for one in (k, v)
        )
        q = q.unflatten(-1, (-1, model.head_dim)).transpose(0, 1)
        scores = _capped(torch.matmul(q, k.transpose(1, 2)) * model.scale, model.score_cap)
        index = torch.arange(len(rows))
        distance = index[:, None] - index
        window = model.windows[number]
        is_hidden = (distance < 0) | (distance >= (window or len(rows)))
        shares = scores.masked_fill(is_hidden, -torch.inf).softmax(-1)
        found = torch.matmul(shares, v).transpose(0, 1).flatten(1)
        return self._linear(found, f"{name}.o_proj")

    def _placed(self, number: int, rows: torch.Tensor, norm: str) -> torch.Tensor:
        """Normalizes and rotates queries or keys (tokens, heads * head_dim)."""
        model = self._decoder
        heads = rows.unflatten(-1, (-1, model.head_dim))
        if model.head_norms == "head":
            heads = self._norm(heads, norm)
        elif model.head_norms == "whole":
            heads = self._norm(rows, norm).view_as(heads)
        rope = model.ropes[number]
        return (heads if rope is None else _rotated(heads, rope)).flatten(1)

    def _feed_forward(self, layer: str, rows: torch.Tensor) -> torch.Tensor:
        model, name = self._decoder, f"{layer}.mlp"
        if model.is_joined:
            gate, up = self._linear(rows, f"{name}.gate_up_proj").chunk(2, -1)
        else:
            gate, up = (self._linear(rows, f"{name}.{one}_proj") for one in ("gate", "up"))
        return self._linear(ACTIVATIONS[model.activation](gate) * up, f"{name}.down_proj")

    def _linear(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        bias = self._parameters.get(f"{name}.bias")
        return functional.linear(rows, self._parameters[f"{name}.weight"], bias)

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        size = rows.square().mean(-1, keepdim=True) + self._decoder.eps
        return rows * size.rsqrt() * (self._parameters[f"{name}.weight"] + self._decoder.added)


def _rotated(heads: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Rotates (tokens, heads, size) by the tokens' places."""
    pairs = len(rope.inverse)
    angles = torch.arange(len(heads)).float()[:, None, None] * rope.inverse
    cosine, sine = angles.cos() * rope.factor, angles.sin() * rope.factor
    first, second, rest = heads.tensor_split((pairs, 2 * pairs), -1)
    turned = (first * cosine - second * sine, second * cosine + first * sine, rest)
    return torch.cat(turned, -1)


def _capped(values: torch.Tensor, cap: float | None) -> torch.Tensor:
    return values if cap is None else cap * torch.tanh(values / cap)
