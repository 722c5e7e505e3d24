"""Prints the time of `add_custom` next to that of plain torch on the CPU, in microseconds.

    python benchmarks/time_add_custom.py [--repeats 5] [--elements 8 4096]

Each figure is the best of several measurements, all taken in one run. `ratio` is npu to plain
torch: below 1 the op is the faster one.
"""

import argparse
import timeit
from collections.abc import Callable

import torch

from add_custom import add_custom


def best_us(call: Callable[[], object], repeats: int) -> float:
    """Returns the time of one call, the best of `repeats` measurements."""
    timer = timeit.Timer(call)
    count = max(1, int(0.05 / max(timer.timeit(3) / 3, 1e-7)))
    return min(timer.timeit(count) / count for _ in range(repeats)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--elements", type=int, nargs="+", default=[8, 4096, 1 << 20, 1 << 24])
    options = parser.parse_args()
    repeats = options.repeats
    compiled = torch.compile(add_custom, backend="npu")
    columns = ("elements", "plain torch", "cpu", "npu", "compiled", "ratio")
    print("".join(f"{column:>13}" for column in columns))
    with torch.no_grad():
        for count in options.elements:
            on_cpu, on_npu = torch.ones(count), torch.ones(count, device="npu")
            plain = best_us(lambda: on_cpu + 0.3 * on_cpu, repeats)  # noqa: B023  (called at once)
            times = [
                best_us(call, repeats)
                for call in (
                    lambda: add_custom(on_cpu, on_cpu, 0.3),  # noqa: B023
                    lambda: add_custom(on_npu, on_npu, 0.3),  # noqa: B023
                    lambda: compiled(on_npu, on_npu, 0.3),  # noqa: B023
                )
            ]
            figures = "".join(f"{figure:>13.2f}" for figure in (plain, *times, times[1] / plain))
            print(f"{count:>13}{figures}")


if __name__ == "__main__":
    main()
