"""Eager ops on npu against the same ops on the CPU, in one run: ratios npu : cpu.

    python packages/npu-ops/benchmarks/ops.py [--only TEXT] [--threads 2] [--clock wall] [--json]

Below 1.0 npu is faster. Groups: small tensors, large ones, dense ops forward and backward, and the
parts of a small call. _timing.py measures pairs; training steps are in training.py.
"""

import argparse
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator

import torch
from _timing import CLOCKS, Ratio, compare
from torch.nn import functional

Call = Callable[[], object]
Calls = dict[str, Call]

SIZES = {"8": 8, "4k": 4096, "1M": 1 << 20, "16M": 1 << 24}


def elementwise(elements: int, device: str) -> Calls:
    """Ops on float32 tensors of ``elements``; ``_`` and ``out=`` make no result."""
    x, y = torch.rand(elements, device=device), torch.rand(elements, device=device)
    out = torch.empty(elements, device=device)
    rows = x.view(-1, min(elements, 1024))
    return {
        "relu": lambda: torch.relu(x),
        "exp": lambda: torch.exp(x),
        "add": lambda: torch.add(x, y),
        "add number": lambda: x + 2.0,
        "mul": lambda: torch.mul(x, y),
        "x > 0": lambda: x > 0,
        "where": lambda: torch.where(out > 0, x, y),
        "add_": lambda: out.add_(y),
        "mul_ number": lambda: out.mul_(1.0),
        "add out=": lambda: torch.add(x, y, out=out),
        "copy_": lambda: out.copy_(x),
        "clone": x.clone,
        "zero_": out.zero_,
        "cat": lambda: torch.cat([x, y]),
        "sum": x.sum,
        "mean": x.mean,
        "amax": x.amax,
        "softmax": lambda: torch.softmax(rows, -1),
        "layer_norm": lambda: functional.layer_norm(rows, rows.shape[-1:]),
    }


def small_only(device: str) -> Calls:
    """Calls with overhead only."""
    x = torch.rand(8, device=device)
    square = torch.rand(4, 4, device=device)
    index = torch.zeros(2, dtype=torch.int64, device=device)
    many = [torch.rand(8, device=device) for _ in range(100)]
    others = [torch.rand(8, device=device) for _ in range(100)]
    return {
        "empty": lambda: torch.empty(8, device=device),
        "view": lambda: x.view(-1),
        "x[1:]": lambda: x[1:],
        "item": x[0].item,
        "mm 4x4": lambda: torch.mm(square, square),
        "linear 4x4": lambda: functional.linear(square, square),
        "index_select": lambda: torch.index_select(x, 0, index),
        "embedding": lambda: functional.embedding(index, square),
        "gelu": lambda: functional.gelu(x),
        "foreach_add_ 100": lambda: torch._foreach_add_(many, 1.0),
        "foreach_addcdiv_ 100": lambda: torch._foreach_addcdiv_(many, others, others, -0.001),
    }


def dense(dtype: torch.dtype, device: str) -> Calls:
    """Matrix products, convolution, attention and norms, forward and with backward."""

    def rand(*shape: int) -> torch.Tensor:
        values = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        return values.to(device, dtype).requires_grad_()

    a, b = rand(512, 512), rand(512, 512)
    tokens, weight, bias = rand(256, 768), rand(768, 768), rand(768)
    image, filters = rand(4, 32, 56, 56), rand(64, 32, 3, 3)
    query, key, value = (rand(1, 12, 256, 64) for _ in range(3))
    scale, shift, channel = rand(768), rand(768), rand(32)
    forward: Calls = {
        "mm 512": lambda: a @ b,
        "linear 256x768": lambda: functional.linear(tokens, weight, bias),
        "conv 3x3": lambda: functional.conv2d(image, filters, padding=1),
        "attention 256": lambda: functional.scaled_dot_product_attention(query, key, value),
        "layer_norm": lambda: functional.layer_norm(tokens, (768,), scale, shift),
        "rms_norm": lambda: functional.rms_norm(tokens, (768,), scale),
        "batch_norm": lambda: functional.batch_norm(
            image, None, None, channel, channel, training=True
        ),
        "gelu": lambda: functional.gelu(tokens),
    }

    def with_backward(call: Call) -> Call:
        leaves = [a, b, tokens, weight, bias, image, filters, query, key, value]
        leaves += [scale, shift, channel]

        def run() -> None:
            result = call()
            assert isinstance(result, torch.Tensor)
            result.backward(torch.ones_like(result))
            for leaf in leaves:
                leaf.grad = None

        return run

    calls: Calls = {}
    for name, call in forward.items():
        calls[name] = torch.inference_mode()(call)
        calls[f"{name} + backward"] = with_backward(call)
    return calls


def groups() -> Iterator[tuple[str, Callable[[str], Calls]]]:
    for label, elements in SIZES.items():
        yield f"{label} elements", lambda device, n=elements: elementwise(n, device)
    yield "small", small_only
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        yield name, lambda device, dtype=dtype: dense(dtype, device)


def anatomy(measure: Callable[[Call, Call], Ratio]) -> dict[str, float]:
    """Nanoseconds of the parts of a call on 8 elements, from calls that differ in one part.

    ``is_set_to`` compares two storages: all it costs is the call. On npu it takes the boxed road,
    with one alias when it is asked about one tensor and two when about two.
    """
    x, y = torch.ones(8, device="npu"), torch.ones(8, device="npu")
    host, other = torch.ones(8), torch.ones(8)
    one = measure(lambda: host.is_set_to(host), lambda: x.is_set_to(x))
    two = measure(lambda: host.is_set_to(other), lambda: x.is_set_to(y))
    in_place = measure(lambda: other.add_(host), lambda: y.add_(x))
    boxed = measure(lambda: host.cumsum(0), lambda: x.cumsum(0))
    parts = {
        "call and dispatch, on the CPU": one.cpu_us,
        "add_ of 8 floats, on the CPU": in_place.cpu_us - one.cpu_us,
        "hot road of add_": in_place.npu_us - in_place.cpu_us,
        "boxed road with an alias": one.npu_us - one.cpu_us,
        "one more alias": two.npu_us - two.cpu_us - one.npu_us + one.cpu_us,
        "boxed road with a fresh result": boxed.npu_us - boxed.cpu_us,
    }
    return {name: round(us * 1000) for name, us in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="rows that contain TEXT")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: for one thread on a busy machine"
    )
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    measure = functools.partial(compare, repeats=args.repeats, clock=CLOCKS[args.clock])
    load = os.getloadavg()[0]
    show = (lambda text: None) if args.json else print
    show(f"torch {torch.__version__}, {args.threads} threads, {args.clock} time, load {load:.1f}")
    rows = {}
    show(f"{'call':<40}{'cpu us':>12}{'npu us':>12}{'npu:cpu':>9}   quartiles")
    for group, make in groups():
        on_cpu, on_npu = make("cpu"), make("npu")
        for name in on_cpu:
            label = f"{group}: {name}"
            if args.only not in label:
                continue
            found = measure(on_cpu[name], on_npu[name])
            rows[label] = dataclasses.asdict(found)
            show(
                f"{label:<40}{found.cpu_us:>12.2f}{found.npu_us:>12.2f}{found.ratio:>9.2f}"
                f"   {found.low:.2f}..{found.high:.2f}"
            )
    parts = anatomy(measure)
    show("\nparts of a call on 8 elements, ns")
    for name, nanoseconds in parts.items():
        show(f"{name:<40}{nanoseconds:>12.0f}")
    if args.json:
        print(json.dumps({"load": load, "threads": args.threads, "rows": rows, "parts_ns": parts}))


if __name__ == "__main__":
    main()
