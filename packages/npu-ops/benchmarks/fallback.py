"""Prints what the fallback costs per op on npu against the same op on the CPU, in nanoseconds.

    python packages/npu-ops/benchmarks/fallback.py [--elements 8] [--repeats 7]

Each figure is the best of several runs on one thread; `overhead` is npu minus CPU. The tensors are
small, so that the kernels themselves cost next to nothing.
"""

import argparse
import timeit
from collections.abc import Callable

import torch


def ops(elements: int, device: str) -> dict[str, Callable[[], object]]:
    """Returns calls to measure, by name, on tensors of `elements` float32 values on `device`."""
    x, y = torch.ones(elements, device=device), torch.ones(elements, device=device)
    out = torch.empty(elements, device=device)
    square = torch.ones(4, 4, device=device)
    index = torch.zeros(2, dtype=torch.int64, device=device)
    many = [torch.ones(elements, device=device) for _ in range(100)]
    return {
        "empty": lambda: torch.empty(elements, device=device),
        "view": lambda: x.view(-1),
        "x[1:]": lambda: x[1:],
        "item": x[0].item,
        "add": lambda: torch.add(x, y),
        "add scalar": lambda: torch.add(x, 2.0),
        "add_": lambda: out.add_(y),
        "add out=": lambda: torch.add(x, y, out=out),
        "relu": lambda: torch.relu(x),
        "sum": lambda: torch.sum(x),
        "mm 4x4": lambda: torch.mm(square, square),
        "index_select": lambda: torch.index_select(x, 0, index),
        "cat": lambda: torch.cat([x, y]),
        "softmax": lambda: torch.softmax(x, 0),
        "copy_": lambda: out.copy_(x),
        "foreach_add_ 100": lambda: torch._foreach_add_(many, 1.0),
        "foreach_add 100": lambda: torch._foreach_add(many, 1.0),
    }


def best_ns(call: Callable[[], object], repeats: int) -> float:
    """Returns the time of one call in nanoseconds, the best of `repeats` measurements."""
    timer = timeit.Timer(call)
    count = max(1, int(2e6 / max(timer.timeit(200) / 200 * 1e9, 1)))
    return min(timer.timeit(count) / count for _ in range(repeats)) * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    on_cpu, on_npu = ops(args.elements, "cpu"), ops(args.elements, "npu")
    print(f"{'op':<18}{'cpu ns':>10}{'npu ns':>10}{'overhead':>10}{'ratio':>8}")
    with torch.no_grad():
        for name, cpu_call in on_cpu.items():
            cpu_ns, npu_ns = best_ns(cpu_call, args.repeats), best_ns(on_npu[name], args.repeats)
            print(
                f"{name:<18}{cpu_ns:>10.0f}{npu_ns:>10.0f}{npu_ns - cpu_ns:>10.0f}"
                f"{npu_ns / cpu_ns:>8.2f}"
            )


if __name__ == "__main__":
    main()
