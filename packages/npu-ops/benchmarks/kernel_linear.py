"""Products of rows with packed weights: GB/s of weights for one row, GOPS for more.

    python packages/npu-ops/benchmarks/kernel_linear.py [--shape 2048 2048] [--threads 2] [--json]

One row is bound by memory, so its weights exceed every cache, and torch's bandwidth for a large
tensor is printed above. Many rows are bound by arithmetic; torch's float32 product is printed next
to them. The best of all repeats counts, as other processes only ever make it slower.
"""

import argparse
import functools
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from npu_ops.kernel_programs.execution import Execution, kernel_sets
from npu_ops.kernel_programs.program import Columns, Embed, KernelProgram, Linear, Rows
from npu_ops.kernel_programs.weights import PackedLinear, pack, pack_integers

KINDS = ["float32", "bfloat16", "float16", "int8", "int4"]
ROWS = [1, 4, 12, 96, 960]
BEYOND_CACHES = 200_000_000  # bytes


def packed(kind: str, outputs: int, inputs: int) -> PackedLinear:
    """A weight of arbitrary values; groups of 64 have 4 bits."""
    if kind not in ("int8", "int4"):
        return pack(torch.randn(outputs, inputs), kind)
    bits, groups = (8, 1) if kind == "int8" else (4, inputs // 64)
    shape = (outputs, groups)
    values = torch.randint(0, 2**bits, (*shape, inputs // groups), dtype=torch.uint8)
    zeros = torch.randint(0, 2**bits, shape, dtype=torch.uint8)
    return pack_integers(values, torch.rand(shape) / inputs, zeros, bits=bits)


def rows_of(count: int) -> Rows:
    return Rows(
        tokens=torch.zeros(count, dtype=torch.int64),
        positions=torch.zeros(count, dtype=torch.int64),
        sequences=torch.zeros(count, dtype=torch.int32),
        slots=torch.arange(count, dtype=torch.int32),
        block_tables=torch.arange(-(-count // 16), dtype=torch.int32)[None],
        kept=torch.arange(count),
    )


def seconds(weight: PackedLinear, kernel_set: str, repeats: int, count: int) -> float:
    """The best time of one product with ``count`` rows, their quantization included."""
    copies = max(1, BEYOND_CACHES // weight.nbytes) if count <= 4 else 1
    weights = {str(i): replace(weight, data=weight.data.clone()) for i in range(copies)}
    x, out = Columns(0, 0, weight.inputs), Columns(1, 0, weight.outputs)
    program = KernelProgram(
        instructions=(
            Embed(out=x, table="x"),
            *(Linear(input=x, out=out, weight=name) for name in weights),
        ),
        widths=(weight.inputs, weight.outputs),
        weights={},
        layers=(),
        logits=out,
        vocabulary=1,
    )
    table = pack(torch.randn(1, weight.inputs), "float32")
    execution = Execution(program, {**weights, "x": table}, cache="u8", kernel_set=kernel_set)
    execution.reserve(-(-count // 16))
    rows = rows_of(count)
    steps = [execution.timed_step(rows)[1] for _ in range(repeats)]
    best = min(sum(ns for name, ns in stages if name == "Linear") for stages in steps)
    return best / copies / 1e9


def torch_seconds(outputs: int, inputs: int, count: int, repeats: int) -> float:
    """The best time of torch's product of floats, likewise."""
    copies = max(1, BEYOND_CACHES // (4 * outputs * inputs)) if count <= 4 else 1
    matrices = [torch.randn(inputs, outputs) for _ in range(copies)]
    x = torch.randn(count, inputs)
    return best_of(repeats, lambda: [x @ matrix for matrix in matrices]) / copies


def best_of(repeats: int, call: Callable[[], object]) -> float:
    def once() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return min(once() for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", type=int, nargs=2, default=[2048, 2048], help="outputs, inputs")
    parser.add_argument("--only", default="", metavar="TEXT", help="sets and kinds with TEXT")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    show = (lambda text: None) if args.json else print
    outputs, inputs = args.shape
    large = torch.ones(BEYOND_CACHES // 4)
    read = large.nbytes / best_of(args.repeats, large.sum) / 1e9
    show(f"{outputs} outputs, {inputs} inputs, {args.threads} threads; memory {read:.1f} GB/s")
    heads = ["1 row: GB/s", *(f"{count}: GOPS" for count in ROWS)]
    show(f"{'':<20}" + "".join(f"{head:>12}" for head in heads))
    found: dict[str, dict[int, float]] = {}

    def report(label: str, size: int, seconds_of: Callable[[int], float]) -> None:
        if args.only not in label:
            return
        times = found[label] = {count: seconds_of(count) for count in ROWS}
        gops = [2 * count * outputs * inputs / times[count] / 1e9 for count in ROWS]
        figures = [size / times[1] / 1e9, *gops]
        show(f"{label:<20}" + "".join(f"{figure:>12.1f}" for figure in figures))

    report(
        "torch float32",
        4 * outputs * inputs,
        lambda count: torch_seconds(outputs, inputs, count, args.repeats),
    )
    for kernel_set, kind in itertools.product(kernel_sets(), KINDS):
        weight = packed(kind, outputs, inputs)
        report(
            f"{kernel_set} {kind}",
            weight.nbytes,
            functools.partial(seconds, weight, kernel_set, args.repeats),
        )
    if args.json:
        print(json.dumps({"memory_gb_per_s": read, "shape": args.shape, "seconds": found}))


if __name__ == "__main__":
    main()
