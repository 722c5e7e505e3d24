"""A layer of sparse attention on paged caches: prefill, decode, its time against dense attention.

    python decode_long.py [--context 32768]

First a small layer shows its results: prefill and decode equal dense attention while
the context is no longer than the indexer's choice, and something else beyond it. Then a layer of
DeepSeek V3.2's sizes, but for its width, decodes one token over a long context.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import npu_ops  # noqa: F401  (the operators)

npu = torch.ops.npu
PAGE = 64  # positions of a page


@dataclass(frozen=True)
class Sizes:
    """A layer's sizes."""

    hidden: int
    heads: int
    plain: int  # features of a head without position
    rope: int  # features of a head that rotate
    latent: int  # features of a token shared by all heads
    value: int  # features of a head's value
    rank: int  # the queries' narrow waist
    index_heads: int
    index_width: int
    chosen: int  # how many positions the indexer picks


SMALL = Sizes(96, 4, 16, 8, 32, 12, 40, 16, 24, 128)
PUBLISHED = Sizes(1024, 128, 128, 64, 512, 128, 1536, 64, 128, 2048)


class Caches:
    """Cached data of a layer's tokens, in pages that a table lists, in any order.

    Attributes:
        latent, rope, index: (pages, PAGE, 1, width).
        table: (batch, pages of a sequence) int32.
        length: tokens that each sequence has.
    """

    def __init__(self, sizes: Sizes, batch: int, capacity: int) -> None:
        pages = -(-capacity // PAGE)
        widths = (sizes.latent, sizes.rope, sizes.index_width)
        self.latent, self.rope, self.index = (
            torch.zeros(batch * pages, PAGE, 1, width) for width in widths
        )
        self.table = torch.randperm(batch * pages, dtype=torch.int32).view(batch, pages)
        self.length = 0

    def slots(self, tokens: int) -> torch.Tensor:
        """Returns where the next tokens go: (batch, tokens) int64."""
        positions = torch.arange(self.length, self.length + tokens)
        return self.table[:, positions // PAGE].long() * PAGE + positions % PAGE

    def whole(self, cache: torch.Tensor) -> torch.Tensor:
        """Returns a cache's rows of each sequence, in their order: (batch, length, width)."""
        return cache[self.table.long()].flatten(1, 3)[:, : self.length]


class SparseAttention(nn.Module):
    """Attention to the positions that an indexer picks, over latent keys and values.

    Source: DeepSeek-AI, DeepSeek-V3.2-Exp, 2025. The operators' documentation has the formulas.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = s = sizes
        self.scale = (s.plain + s.rope) ** -0.5

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape) * shape[-2] ** -0.5)

        def vector(width: int, value: float) -> nn.Parameter:
            return nn.Parameter(torch.full((width,), value))

        self.down_q = weight(s.hidden, s.rank)
        self.up_q = weight(s.rank, s.heads * (s.plain + s.rope))
        self.up_k = weight(s.heads, s.plain, s.latent)
        self.down_kv = weight(s.hidden, s.latent + s.rope)
        self.norm_q, self.norm_kv = vector(s.rank, 1.0), vector(s.latent, 1.0)
        self.index_q = weight(s.rank, s.index_heads * s.index_width)
        self.index_k = weight(s.hidden, s.index_width)
        self.index_scale, self.index_shift = vector(s.index_width, 1.0), vector(s.index_width, 0.0)
        self.index_weights = weight(s.hidden, s.index_heads)
        self.up_v = weight(s.heads, s.latent, s.value)
        self.out = weight(s.heads * s.value, s.hidden)
        self.requires_grad_(False)  # caches are written in place

    def forward(self, x: torch.Tensor, caches: Caches) -> torch.Tensor:
        """Attends with new tokens (batch, tokens, hidden), which the caches then hold."""
        batch, tokens = x.shape[:2]
        cos, sin = self.turns(caches.length, tokens, batch)
        slots = caches.slots(tokens)
        caches.length += tokens
        seen = npu.sparse_attention(
            x, self.down_q, self.up_q, self.up_k, self.down_kv, self.norm_q, self.norm_kv,
            self.index_q, self.index_k, self.index_scale, self.index_shift, self.index_weights,
            cos, sin, slots, caches.latent, caches.rope, caches.index, caches.table,
            torch.full((batch,), caches.length, dtype=torch.int32), self.scale,
            sparse_count=self.sizes.chosen,
        )  # fmt: skip
        values = torch.einsum("bthl,hlv->bthv", seen, self.up_v)
        return values.flatten(2) @ self.out

    def turns(self, first: int, tokens: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cos and sin of tokens' positions: (batch, tokens, rope / 2)."""
        half = self.sizes.rope // 2
        speeds = 10_000 ** -(torch.arange(half) / half)
        angles = (torch.arange(first, first + tokens)[:, None] * speeds).expand(batch, -1, -1)
        return angles.cos(), angles.sin()


def dense(layer: SparseAttention, x: torch.Tensor) -> torch.Tensor:
    """Returns a layer's result for sequences (batch, tokens, hidden), in torch's own ops."""
    s, (batch, tokens) = layer.sizes, x.shape[:2]
    cos, sin = layer.turns(0, tokens, batch)

    def rotated(features: torch.Tensor) -> torch.Tensor:
        turns = torch.complex(cos, sin).unsqueeze(2)
        pairs = torch.view_as_complex(features.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turns).flatten(-2)

    narrow = F.rms_norm(x @ layer.down_q, (s.rank,), layer.norm_q, 1e-5)
    q = (narrow @ layer.up_q).view(batch, tokens, s.heads, -1)
    q = torch.cat([q[..., : s.plain], rotated(q[..., s.plain :])], -1)
    kv = x @ layer.down_kv
    latent = F.rms_norm(kv[..., : s.latent], (s.latent,), layer.norm_kv, 1e-5)
    k = torch.einsum("btl,hpl->bthp", latent, layer.up_k)
    k_rope = rotated(kv[..., None, s.latent :]).expand(-1, -1, s.heads, -1)
    v = torch.einsum("btl,hlv->bthv", latent, layer.up_v)
    q, k, v = (one.transpose(1, 2) for one in (q, torch.cat([k, k_rope], -1), v))
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=layer.scale)
    return seen.transpose(1, 2).flatten(2) @ layer.out


def show_equality(context: int) -> None:
    """Prints how far a layer is from dense attention, below its choice and beyond it."""
    layer = SparseAttention(SMALL)
    x = torch.randn(2, context, SMALL.hidden)
    caches = Caches(SMALL, 2, context)
    prompt = context - 8
    parts = [layer(x[:, :prompt], caches)]
    parts += [layer(x[:, place : place + 1], caches) for place in range(prompt, context)]
    difference = (torch.cat(parts, 1) - dense(layer, x)).abs()
    print(
        f"{context} tokens, {SMALL.chosen} chosen: prefill {difference[:, :prompt].max():.1e}, "
        f"decode {difference[:, prompt:].max():.1e} from dense attention"
    )


def show_time(context: int) -> None:
    """Prints the time of one token over a context of random tokens, against dense attention."""
    s = PUBLISHED
    layer = SparseAttention(s)
    caches = Caches(s, 1, context + 1)
    for cache in (caches.latent, caches.rope, caches.index):
        cache.normal_()
    x = torch.randn(1, 1, s.hidden)
    query, query_rope = torch.randn(1, 1, s.heads, s.latent), torch.randn(1, 1, s.heads, s.rope)
    index_query = torch.randn(1, 1, s.index_heads, s.index_width)
    weights = torch.randn(1, 1, s.index_heads)
    length = torch.tensor([context], dtype=torch.int32)

    def token() -> torch.Tensor:
        caches.length = context
        return layer(x, caches)

    def attend() -> torch.Tensor:  # the part of the layer's operator between its projections
        picked = npu.lightning_indexer(
            index_query, caches.index, weights, block_table=caches.table,
            actual_seq_lengths_key=length, layout_key="PA_BSND", sparse_count=s.chosen,
        )  # fmt: skip
        seen: torch.Tensor = npu.sparse_flash_attention(
            query, caches.latent, caches.latent, picked, layer.scale, 1, block_table=caches.table,
            actual_seq_lengths_kv=length, query_rope=query_rope, key_rope=caches.rope,
            layout_kv="PA_BSND",
        )  # fmt: skip
        return seen

    caches.length = context
    keys = torch.cat([caches.whole(caches.latent), caches.whole(caches.rope)], -1)[:, None]
    values = F.pad(keys[..., : s.latent], (0, s.rope))
    queries = torch.cat([query, query_rope], -1)  # heads as rows, since they share the keys

    def attend_to_all() -> torch.Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, scale=layer.scale)

    print(
        f"{context:,} tokens, {s.chosen:,} chosen, float32: a token's attention takes "
        f"{median_ms(attend):.1f} ms, dense {median_ms(attend_to_all):.1f} ms; the layer "
        f"{median_ms(token):.1f} ms"
    )


def median_ms(call: Callable[[], object]) -> float:
    """Returns the median of some calls' times, in milliseconds."""
    call()
    times = []
    for _ in range(7):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--context", type=int, default=32768, help="tokens of the long context")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    show_equality(SMALL.chosen)
    show_equality(3 * SMALL.chosen)
    show_time(arguments.context)
