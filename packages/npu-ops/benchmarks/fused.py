"""Compares the ops of torch.ops.npu with the same computation out of torch's ops.

    python packages/npu-ops/benchmarks/fused.py [--only rms_norm] [--rounds 7] [--rows]

Four calls of each op run in turns, so that other load affects all of them: fused and unfused, on
npu and on the CPU. Ratios are medians of fused : unfused time of the same round; below 1 the fused
op is faster. The last columns show its limits: bytes that must move (each argument, each result
once) and arithmetic, against a copy and a product that are measured in the same run. --rows shows
quantized_linear by the number of rows instead.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from npu_ops.fused import dynamic_quantize, quantized_linear

npu = torch.ops.npu
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Row:
    """One computation: its arguments on the CPU, both forms, and how much it does."""

    name: str
    arguments: Tensors
    fused: Callable[..., object]
    unfused: Callable[..., object]
    moved_bytes: int
    operations: float


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As transformers writes it."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * wide.to(x.dtype)


def rotary(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """As transformers writes it."""
    both_c, both_s = torch.cat([c, c], -1), torch.cat([s, s], -1)
    first, second = x.chunk(2, -1)
    return x * both_c + torch.cat([-second, first], -1) * both_s


def norm_rows(dtype: torch.dtype) -> list[Row]:
    """Ops that memory limits."""
    short = str(dtype).removeprefix("torch.")
    x, w = torch.randn(512, 2048).to(dtype), torch.randn(2048).to(dtype)
    gate, up = torch.randn(512, 8192).to(dtype).chunk(2, -1)
    heads = torch.randn(1, 512, 16, 64).to(dtype).transpose(1, 2)
    c, s = torch.randn(2, 512, 32).to(dtype)
    size = x.element_size()
    return [
        Row(f"rms_norm {short}", (x, w), npu.rms_norm, rms_norm, 2 * x.nbytes, 4 * x.numel()),
        Row(f"swiglu {short}", (gate, up), npu.swiglu, lambda g, u: F.silu(g) * u,
            3 * gate.numel() * size, 8 * gate.numel()),
        Row(f"rotary_embedding {short}", (heads, c, s), npu.rotary_embedding, rotary,
            2 * heads.nbytes, 3 * heads.numel()),
        Row(f"dynamic_quantize {short}", (x,), npu.dynamic_quantize, dynamic_quantize.reference,
            x.nbytes + x.numel(), 4 * x.numel()),
    ]  # fmt: skip


def product_rows(dtype: torch.dtype) -> list[Row]:
    """Ops around a product."""
    short = str(dtype).removeprefix("torch.")
    x, w, b = (torch.randn(*shape).to(dtype) for shape in ((256, 1024), (1024, 1024), (1024,)))
    image, kernel = torch.randn(4, 64, 32, 32).to(dtype), torch.randn(64, 64, 3, 3).to(dtype)
    mean, var = torch.randn(64).to(dtype), torch.rand(64).to(dtype) + 0.5
    linear = 2 * x.shape[0] * w.numel()
    moved = 2 * x.nbytes + w.nbytes

    def plain_conv(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> object:
        return F.batch_norm(F.conv2d(x, w, padding=1), m, v).relu()

    def fused_conv(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> object:
        return npu.conv_bn_relu(x, w, None, m, v, padding=[1])

    return [
        Row(f"linear_relu {short}", (x, w, b), npu.linear_relu,
            lambda x, w, b: F.linear(x, w, b).relu(), moved, linear),
        Row(f"linear_gelu {short}", (x, w, b), npu.linear_gelu,
            lambda x, w, b: F.gelu(F.linear(x, w, b)), moved, linear),
        Row(f"addmm_relu {short}", (b, x, w), npu.addmm_relu,
            lambda b, x, w: torch.addmm(b, x, w).relu(), moved, linear),
        Row(f"conv_bn_relu {short}", (image, kernel, mean, var), fused_conv, plain_conv,
            2 * image.nbytes + kernel.nbytes, 2 * image.numel() * 64 * 9),
    ]  # fmt: skip


def attention_rows(dtype: torch.dtype) -> list[Row]:
    """A prompt in a window, and a step over a cache."""
    short = str(dtype).removeprefix("torch.")
    q = torch.randn(1, 16, 1024, 64).to(dtype)
    k, v = torch.randn(2, 1, 4, 1024, 64).to(dtype)
    at = torch.arange(1024)
    mask = (at <= at[:, None]) & (at > at[:, None] - 128)
    caches = tuple(torch.randn(1, 4, 2048, 64).to(dtype) for _ in range(2))
    step = tuple(torch.randn(1, heads, 1, 64).to(dtype) for heads in (16, 4, 4))

    def plain_step(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> object:
        keys[:, :, 2000:2001] = k
        values[:, :, 2000:2001] = v
        whole = keys[:, :, :2001], values[:, :, :2001]
        return F.scaled_dot_product_attention(q, *whole, enable_gqa=True)

    return [
        Row(f"attention, window 128 of 1024, {short}", (q, k, v, mask),
            lambda q, k, v, m: npu.fused_attention(q, k, v, is_causal=True, window=128),
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
            2 * q.nbytes + 2 * k.nbytes, 4 * 16 * 1024 * 128 * 64),
        Row(f"attention, one token over 2000, {short}", (*step, *caches),
            lambda q, k, v, a, b: npu.fused_attention(q, k, v, a, b, 2000), plain_step,
            2 * caches[0].nbytes, 4 * 16 * 2000 * 64),
    ]  # fmt: skip


def quantized_row(bits: int, dtype: torch.dtype, rows: int) -> Row:
    """A stored weight against dequantizing it for torch's product."""
    short = str(dtype).removeprefix("torch.")
    x = torch.randn(rows, 2048).to(dtype)
    values = torch.randint(0, 2**bits, (2048, 2048), dtype=torch.int32)
    weight = quantized_linear.pack_int4(values) if bits == 4 else (values - 128).to(torch.int8)
    scale = torch.rand(2048, 2048 // 64 if bits == 4 else 1)

    def plain(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> object:
        return F.linear(x, quantized_linear.dequantize(w, s, bits=bits).to(x.dtype))

    return Row(
        f"quantized_linear int{bits}, {rows} rows, {short}", (x, weight, scale),
        lambda x, w, s: npu.quantized_linear(x, w, s, bits=bits), plain,
        weight.nbytes + scale.nbytes + 2 * x.nbytes, 2 * rows * 2048 * 2048,
    )  # fmt: skip


def time_s(call: Callable[[], object], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


def interleaved(calls: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Times of each call per round, the calls in turns."""
    repeats = [max(1, int(0.02 / max(time_s(call, 2), 1e-6))) for call in calls]
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for index, call in enumerate(calls):
            found[index].append(time_s(call, repeats[index]))
    return found


def limits(rounds: int) -> tuple[float, float]:
    """Bytes and operations a second of a large copy and of a product, best of some."""
    a, b = torch.empty(1 << 24), torch.empty(1 << 24)
    m = torch.randn(1024, 1024)
    copied, multiplied = interleaved([lambda: a.copy_(b), lambda: m @ m], rounds)
    return 2 * a.nbytes / min(copied), 2 * 1024**3 / min(multiplied)


def report(rows: list[Row], rounds: int) -> None:
    bandwidth, speed = limits(rounds)
    print(f"copy {bandwidth / 1e9:.1f} GB/s, float32 product {speed / 1e9:.0f} GFLOP/s")
    print(f"{'':<44}{'fused : unfused':>20}{'npu : cpu':>11}{'npu us':>9}  limit, reached")
    print(f"{'op':<44}{'npu':>12}{'cpu':>8}{'fused':>11}")
    for row in rows:
        there = tuple(part.to("npu") for part in row.arguments)
        npu_f, npu_u, cpu_f, cpu_u = interleaved(
            [
                lambda row=row, there=there: row.fused(*there),
                lambda row=row, there=there: row.unfused(*there),
                lambda row=row: row.fused(*row.arguments),
                lambda row=row: row.unfused(*row.arguments),
            ],
            rounds,
        )
        ratios = [
            statistics.median(a / b for a, b in zip(first, second, strict=True))
            for first, second in ((npu_f, npu_u), (cpu_f, cpu_u), (npu_f, cpu_f))
        ]
        least = {"bytes": row.moved_bytes / bandwidth, "FLOPs": row.operations / speed}
        limit = max(least, key=least.__getitem__)
        print(
            f"{row.name:<44}{ratios[0]:>12.2f}{ratios[1]:>8.2f}{ratios[2]:>11.2f}"
            f"{min(npu_f) * 1e6:>9.0f}  {limit}, {least[limit] / min(npu_f):.0%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of the name of a row")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", action="store_true", help="quantized_linear by rows")
    args = parser.parse_args()
    dtypes = (torch.float32, torch.bfloat16)
    if args.rows:
        sizes = (1, 2, 4, 8, 11, 12, 16, 32, 64)
        rows = [quantized_row(bits, d, n) for bits in (8, 4) for d in dtypes for n in sizes]
    else:
        rows = [
            row
            for dtype in dtypes
            for row in (
                *norm_rows(dtype),
                *product_rows(dtype),
                *attention_rows(dtype),
                *(quantized_row(bits, dtype, n) for bits in (8, 4) for n in (1, 64)),
            )
        ]
    with torch.inference_mode():
        report([row for row in rows if args.only in row.name], args.rounds)


if __name__ == "__main__":
    main()
