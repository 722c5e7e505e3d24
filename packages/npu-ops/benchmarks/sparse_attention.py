"""Decode of one token over long contexts: sparse attention against dense.

    python packages/npu-ops/benchmarks/sparse_attention.py [--contexts 4096 65536] [--float32]

At the published sizes (128 heads, latent 512 + 64 rotary; indexer of 64 heads of 128; 2,048
positions) over a paged cache of one sequence, pages in random order. The forms of one context run
in turns, so that other load affects all of them; times are medians. "composed" is the
same definition out of torch's ops, "dense" scaled_dot_product_attention on the CPU over the whole
context, gathered beforehand, and "dense npu" npu.fused_attention on the device. "limit" is the
share that the indexer reaches of its two bounds: the bytes of its cache against a copy, and its
products against a matrix product, both measured in the same run.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

npu = torch.ops.npu
HEADS, LATENT, ROPE = 128, 512, 64
INDEX_HEADS, INDEX_WIDTH, PICKED, PAGE = 64, 128, 2048, 128
SCALE = 192**-0.5
Call = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Step:
    """One token's tensors over a context."""

    context: int
    query: torch.Tensor  # (1, 1, heads, latent + rope)
    index_query: torch.Tensor  # (1, 1, index heads, index width)
    weights: torch.Tensor  # (1, 1, index heads)
    cache: torch.Tensor  # (pages, PAGE, 1, latent + rope)
    index_cache: torch.Tensor  # (pages, PAGE, 1, index width)
    table: torch.Tensor  # (1, pages)
    length: torch.Tensor  # (1,)

    @classmethod
    def drawn(cls, context: int, dtype: torch.dtype) -> "Step":
        """Returns random tensors of the published sizes."""
        pages = context // PAGE

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(shape, dtype=dtype)

        return cls(
            context,
            rand(1, 1, HEADS, LATENT + ROPE),
            rand(1, 1, INDEX_HEADS, INDEX_WIDTH),
            rand(1, 1, INDEX_HEADS),
            rand(pages, PAGE, 1, LATENT + ROPE),
            rand(pages, PAGE, 1, INDEX_WIDTH),
            torch.randperm(pages, dtype=torch.int32).unsqueeze(0),
            torch.tensor([context], dtype=torch.int32),
        )

    def index(self) -> torch.Tensor:
        """Picks the positions."""
        return self._index(self.index_query, self.index_cache, self.weights)

    def index_int8(self) -> Call:
        """Returns a function that picks them by an 8-bit cache, with a scale per row."""

        def quantized(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scale = rows.float().abs().amax(-1) / 127
            return (rows / scale.unsqueeze(-1)).round().to(torch.int8), scale

        (query, query_scale), (cache, scale) = map(quantized, (self.index_query, self.index_cache))
        scales = {"query_dequant_scale": query_scale, "key_dequant_scale": scale}
        return lambda: self._index(query, cache, self.weights, **scales)

    def _index(self, *tensors: torch.Tensor, **scales: torch.Tensor) -> torch.Tensor:
        return npu.lightning_indexer(
            *tensors,
            block_table=self.table,
            actual_seq_lengths_key=self.length,
            layout_key="PA_BSND",
            sparse_count=PICKED,
            **scales,
        )

    def attend(self, indices: torch.Tensor) -> torch.Tensor:
        """Attends to them."""
        latent, rope = self.cache.split([LATENT, ROPE], -1)
        query, query_rope = self.query.split([LATENT, ROPE], -1)
        return npu.sparse_flash_attention(
            query,
            latent,
            latent,
            indices,
            SCALE,
            1,
            block_table=self.table,
            actual_seq_lengths_kv=self.length,
            query_rope=query_rope,
            key_rope=rope,
            layout_kv="PA_BSND",
        )

    def composed(self) -> torch.Tensor:
        """The same definition out of torch's ops; the last query sees all keys."""
        pages = self.table[0].long()
        keys = self.index_cache[pages].view(-1, INDEX_WIDTH)
        products = (self.index_query[0, 0] @ keys.mT).relu()
        scores = self.weights[0].float() @ products.float()
        picked = scores[0].topk(min(PICKED, self.context)).indices
        rows = self.cache[pages[picked // PAGE], picked % PAGE, 0]
        shares = (self.query[0, 0] @ rows.mT * SCALE).float().softmax(-1).to(rows.dtype)
        return (shares @ rows[:, :LATENT]).view(1, 1, HEADS, LATENT)

    def gathered(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value of dense attention, gathered once.

        All heads share one key, so they are rows of one head: with enable_gqa torch would copy
        the cache once a head.
        """
        key = self.cache[self.table[0].long()].reshape(1, 1, -1, LATENT + ROPE)
        # One width for all, as the device's own attention takes.
        value = F.pad(key[..., :LATENT], (0, ROPE))
        return self.query, key, value


def time_ms(call: Call) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def in_turns(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Median milliseconds of each call."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(time_ms(call))
    return {name: statistics.median(times) for name, times in found.items()}


def limits(rounds: int) -> tuple[float, float]:
    """Bytes that a sum reads, and operations of a float32 product, in a second: best of some."""
    read = torch.ones(1 << 26)
    m = torch.randn(1024, 1024)
    summed = min(time_ms(read.sum) for _ in range(rounds + 1))
    multiplied = min(time_ms(lambda: m @ m) for _ in range(rounds + 1))
    return read.nbytes / summed * 1e3, 2 * 1024**3 / multiplied * 1e3


def measure(step: Step, rounds: int) -> dict[str, float]:
    indices = step.index()
    query, key, value = step.gathered()
    on_npu = [part.to("npu") for part in (query, key, value)]

    def dense() -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, scale=SCALE)

    def dense_on_npu() -> torch.Tensor:
        return npu.fused_attention(*on_npu, scale=SCALE).cpu()

    calls: dict[str, Call] = {
        "indexer": step.index,
        "in int8": step.index_int8(),
        "attention": lambda: step.attend(indices),
        "whole": lambda: step.attend(step.index()),
        "composed": step.composed,
        "dense": dense,
        "dense npu": dense_on_npu,
    }
    return in_turns(calls, rounds)


def report(contexts: list[int], dtype: torch.dtype, rounds: int) -> None:
    bandwidth, speed = limits(rounds)
    print(f"{dtype}, {torch.get_num_threads()} threads; reads {bandwidth / 1e9:.1f} GB/s, "
          f"float32 product {speed / 1e9:.0f} GFLOP/s")  # fmt: skip
    names = ("indexer", "in int8", "attention", "whole", "composed", "dense", "dense npu")
    print(f"{'context':>8}" + "".join(f"{name + ' ms':>14}" for name in names)
          + f"{'dense : whole':>15}  the indexer's limit")  # fmt: skip
    for context in contexts:
        step = Step.drawn(context, dtype)
        times = measure(step, rounds)
        # Up to PICKED positions nothing is scored.
        scored = context if context > PICKED else 0
        seconds = times["indexer"] / 1e3
        shares = {
            "memory": scored * INDEX_WIDTH * dtype.itemsize / bandwidth / seconds,
            "arithmetic": 2 * scored * INDEX_WIDTH * INDEX_HEADS / speed / seconds,
            "memory in int8": scored * (INDEX_WIDTH + 4) / bandwidth / (times["in int8"] / 1e3),
        }
        print(f"{context:>8}" + "".join(f"{times[name]:>14.2f}" for name in names)
              + f"{times['dense'] / times['whole']:>14.1f}x  "
              + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=[1 << 12, 1 << 14, 1 << 16, 1 << 17],
        help="multiples of 128",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--float32", action="store_true", help="instead of bfloat16")
    args = parser.parse_args()
    torch.manual_seed(0)
    with torch.inference_mode():
        report(args.contexts, torch.float32 if args.float32 else torch.bfloat16, args.rounds)


if __name__ == "__main__":
    main()
