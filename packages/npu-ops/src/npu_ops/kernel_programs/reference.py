"""Reference implementation of kernel programs in torch, for comparison with the kernels.

It is slow, and keeps keys and values in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn import functional

from npu_ops.kernel_programs.program import (
    BLOCK_SLOTS,
    Activation,
    Append,
    Attend,
    Columns,
    Combine,
    Embed,
    Experts,
    Instruction,
    Keep,
    KernelProgram,
    Linear,
    Load,
    Norm,
    NormOptions,
    Rotate,
    Rows,
    Store,
)
from npu_ops.kernel_programs.sparse_attention import SparseAttention, select_blocks
from npu_ops.kernel_programs.weights import PackedLinear, unpack

__all__ = ["ACTIVATIONS", "ReferenceExecution"]

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


class ReferenceExecution:
    """Runs a program like npu_ops.kernel_programs.execution.Execution, in float32."""

    def __init__(
        self,
        program: KernelProgram,
        weights: Mapping[str, PackedLinear | torch.Tensor],
        *,
        sparse_attention: SparseAttention | None = None,
    ) -> None:
        """Loads a program, and unpacks its weights."""
        self.program = program
        self._sparse_attention = sparse_attention
        self._weights = {
            name: unpack(weight) if isinstance(weight, PackedLinear) else weight
            for name, weight in weights.items()
        }
        # By layer: keys and values (blocks, slots, heads, size).
        self._caches: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.reserve(0)

    def reserve(self, blocks: int) -> None:
        """Allocates the blocks 0 to blocks - 1; their contents are undefined."""
        self._caches = [
            (
                torch.zeros(blocks, BLOCK_SLOTS, layer.key_heads, layer.key_size),
                torch.zeros(blocks, BLOCK_SLOTS, layer.key_heads, layer.value_size),
            )
            for layer in self.program.layers
        ]

    def step(self, rows: Rows) -> torch.Tensor:
        """Runs a step; returns logits (kept, vocabulary) float32."""
        assert self.program.logits is not None
        step = _Step(self.program, self._weights, self._caches, rows)
        step.sparse_attention = self._sparse_attention if rows.is_decode else None
        for instruction in self.program.instructions:
            step.run(instruction)
        return step.get(self.program.logits)

    def run(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs a program on tensors; takes and returns (rows, width) float32."""
        step = _Step(self.program, self._weights, self._caches, arguments)
        for instruction in self.program.instructions:
            step.run(instruction)
        return step.stored


class _Step:
    def __init__(
        self,
        program: KernelProgram,
        weights: Mapping[str, torch.Tensor],
        caches: list[tuple[torch.Tensor, torch.Tensor]],
        rows: Rows | Sequence[torch.Tensor],
    ) -> None:
        self._weights = weights
        self._caches = caches
        self._arguments: Sequence[torch.Tensor] = ()
        self.sparse_attention: SparseAttention | None = None
        self.stored: list[torch.Tensor] = []
        if isinstance(rows, Rows):
            self._rows = rows
            count = len(rows.tokens)
        else:
            self._arguments = rows
            count = len(rows[0])
        self._buffers = [torch.zeros(count, width) for width in program.widths]
        self._count = count

    def get(self, columns: Columns) -> torch.Tensor:
        """Returns columns of a buffer: (rows, width)."""
        values = self._buffers[columns.buffer][: self._count]
        return values[:, columns.start : columns.start + columns.width]

    def run(self, instruction: Instruction) -> None:
        """Runs one instruction."""
        runs: dict[type, Callable[..., None]] = {
            Embed: self._embed,
            Norm: self._norm,
            Linear: self._linear,
            Rotate: self._rotate,
            Append: self._append,
            Attend: self._attend,
            Combine: self._combine,
            Keep: self._keep,
            Experts: self._experts,
            Load: self._load,
            Store: self._store,
        }
        runs[type(instruction)](instruction)

    def _set(self, columns: Columns, values: torch.Tensor) -> None:
        self.get(columns).copy_(values)

    def _weight(self, name: str) -> torch.Tensor:
        return self._weights[name].float()

    def _embed(self, one: Embed) -> None:
        index = self._rows.tokens if one.index == "token" else self._rows.positions
        self._set(one.out, self._weight(one.table)[index] * one.scale)

    def _normalized(self, x: torch.Tensor, options: NormOptions) -> torch.Tensor:
        parts = x.reshape(len(x), options.parts, -1)
        if options.kind == "layer":
            parts = parts - parts.mean(-1, keepdim=True)
        parts = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + options.eps)
        if options.weight is not None:
            parts = parts * self._weight(options.weight)
        if options.bias is not None:
            parts = parts + self._weight(options.bias)
        return parts.flatten(1)

    def _norm(self, one: Norm) -> None:
        self._set(one.out, self._normalized(self.get(one.input), one.options))

    def _linear(self, one: Linear) -> None:
        x = self.get(one.input)
        if one.norm is not None:
            x = self._normalized(x, one.norm)
        y = x @ self._weight(one.weight).t()
        if one.bias is not None:
            y = y + self._weight(one.bias)
        activation = _activation(one.activation)
        if one.gated:
            gate, up = _halves(y)
            y = activation(gate) * up
        else:
            y = activation(y)
        if one.soft_cap is not None:
            y = one.soft_cap * torch.tanh(y / one.soft_cap)
        y = y * one.factor
        self._set(one.out, y if one.residual is None else self.get(one.residual) + y)

    def _rotate(self, one: Rotate) -> None:
        x = self.get(one.values).reshape(self._count, one.heads, -1)
        positions = self._rows.positions
        own, other = self._weight(one.own)[positions], self._weight(one.other)[positions]
        turned = x[..., self._weights[one.partner].long()]
        self._set(one.values, (own[:, None] * x + other[:, None] * turned).flatten(1))

    def _append(self, one: Append) -> None:
        keys, values = self._caches[one.layer]
        for row, (sequence, slot) in enumerate(
            zip(self._rows.sequences.tolist(), self._rows.slots.tolist(), strict=True)
        ):
            block = int(self._rows.block_tables[sequence, slot // BLOCK_SLOTS])
            place = slot % BLOCK_SLOTS
            keys[block, place] = self.get(one.keys)[row].view_as(keys[block, place])
            values[block, place] = self.get(one.values)[row].view_as(values[block, place])

    def _attend(self, one: Attend) -> None:
        keys, values = self._caches[one.layer]
        queries = self.get(one.queries).reshape(self._count, one.heads, -1)
        group = one.heads // keys.shape[2]
        results = []
        for row, (sequence, slot) in enumerate(
            zip(self._rows.sequences.tolist(), self._rows.slots.tolist(), strict=True)
        ):
            table = self._rows.block_tables[sequence, : slot // BLOCK_SLOTS + 1].long()
            chosen = self.sparse_attention
            if chosen is not None and slot >= chosen.dense_up_to:
                held, their_values = (
                    cache[table].flatten(0, 1)[: slot + 1] for cache in (keys, values)
                )
                result = _chosen(queries[row] * one.scale, held, their_values, chosen)
                results.append(result.flatten())
                continue
            first = 0 if one.window is None else max(0, slot - one.window + 1)
            seen = [
                cache[table].flatten(0, 1)[first : slot + 1].repeat_interleave(group, 1)
                for cache in (keys, values)
            ]
            scores = torch.einsum("hd,shd->hs", queries[row], seen[0]) * one.scale
            if one.soft_cap is not None:
                scores = one.soft_cap * torch.tanh(scores / one.soft_cap)
            if one.slopes is not None:
                distance = torch.arange(first, slot + 1) - slot
                scores = scores + self._weight(one.slopes)[:, None] * distance
            if one.sinks is not None:
                scores = torch.cat([scores, self._weight(one.sinks)[:, None]], -1)
            shares = scores.softmax(-1)[:, : slot + 1 - first]
            results.append(torch.einsum("hs,shd->hd", shares, seen[1]).flatten())
        self._set(one.out, torch.stack(results))

    def _combine(self, one: Combine) -> None:
        y = one.factor * _activation(one.activation)(self.get(one.left))
        if one.op != "copy":
            right = one.right
            other = self._weight(right) if isinstance(right, str) else self.get(_columns(right))
            y = y + other if one.op == "add" else y * other
        self._set(one.out, y)

    def _keep(self, one: Keep) -> None:
        source = self._buffers[one.input.buffer][:, one.input.start :]
        values = source[self._rows.kept, : one.input.width].clone()
        self._count = len(values)
        self._set(one.out, values)

    def _load(self, one: Load) -> None:
        self._set(one.out, self._arguments[one.argument])

    def _store(self, one: Store) -> None:
        assert one.result == len(self.stored)
        self.stored.append(self.get(one.input).clone())

    def _experts(self, one: Experts) -> None:
        x, scores = self.get(one.input), self.get(one.scores)
        chosen_scores, chosen = scores.topk(one.chosen, -1)
        if one.shares == "softmax":
            shares = scores.softmax(-1).gather(1, chosen)
        elif one.shares == "sigmoid":
            shares = torch.sigmoid(chosen_scores)
        else:
            shares = chosen_scores.softmax(-1)
        total = torch.zeros_like(self.get(one.out))
        if one.residual is not None:
            total += self.get(one.residual)
        for expert in range(len(one.gate_up)):
            y = x @ self._weight(one.gate_up[expert]).t()
            if one.gate_up_bias is not None:
                y = y + self._weight(one.gate_up_bias[expert])
            gate, up = _halves(y)
            if one.limit is not None:
                gate, up = gate.clamp(max=one.limit), up.clamp(-one.limit, one.limit)
                y = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            else:
                y = _activation(one.activation)(gate) * up
            y = y @ self._weight(one.down[expert]).t()
            if one.down_bias is not None:
                y = y + self._weight(one.down_bias[expert])
            total += y * (shares * (chosen == expert)).sum(-1, keepdim=True)
        self._set(one.out, total)


def _chosen(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, chosen: SparseAttention
) -> torch.Tensor:
    """Returns sparse attention to the blocks that each key head selects: (heads, value size)."""
    group = len(queries) // keys.shape[1]
    blocks = select_blocks(queries, keys, chosen)
    places = torch.arange(len(keys)) // BLOCK_SLOTS
    # (positions, key heads)
    is_seen = (places[:, None, None] == blocks).any(-1)
    scores = torch.einsum("hd,shd->hs", queries, keys.repeat_interleave(group, 1))
    scores = scores.masked_fill(~is_seen.t().repeat_interleave(group, 0), -torch.inf)
    return torch.einsum("hs,shd->hd", scores.softmax(-1), values.repeat_interleave(group, 1))


def _activation(name: Activation | None) -> Callable[[torch.Tensor], torch.Tensor]:
    return ACTIVATIONS[name] if name is not None else lambda x: x


def _halves(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns gate and up of outputs interleaved in blocks of 16."""
    pairs = y.reshape(len(y), -1, 2, 16)
    return pairs[:, :, 0].flatten(1), pairs[:, :, 1].flatten(1)


def _columns(right: Columns | str | None) -> Columns:
    assert isinstance(right, Columns)
    return right
