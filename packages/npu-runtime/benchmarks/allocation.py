"""Benefit of the pool: new results of element-wise ops on npu against cpu tensors.

    python packages/npu-runtime/benchmarks/allocation.py

Prints the median time of ``a + b`` with a new result each time, and of allocating alone, for sizes
from 4 KB to 64 MB. The kernel is the same; only the source of the result's memory differs. Memory
bandwidth limits a large add: 12 bytes an element, and on cpu also the page faults of fresh pages,
which the pool keeps mapped.
"""

import torch
from _timing import median_us


def measure(elements: int) -> tuple[float, float, float, float]:
    times = []
    for place in ("cpu", "npu"):
        a = torch.ones(elements, device=place)
        b = torch.ones(elements, device=place)
        times.append(median_us(lambda a=a, b=b: a + b))
        times.append(median_us(lambda place=place: torch.empty(elements, device=place)))
    return times[0], times[2], times[1], times[3]


def main() -> None:
    print(f"{'bytes':>12}{'add cpu':>12}{'add npu':>12}{'cpu/npu':>9}", end="")
    print(f"{'empty cpu':>12}{'empty npu':>12}  (microseconds)")
    for elements in (1024, 65_536, 1 << 20, 1 << 24):
        add_cpu, add_npu, empty_cpu, empty_npu = measure(elements)
        print(
            f"{elements * 4:>12,}{add_cpu:>12.2f}{add_npu:>12.2f}{add_cpu / add_npu:>9.2f}", end=""
        )
        print(f"{empty_cpu:>12.2f}{empty_npu:>12.2f}")


if __name__ == "__main__":
    main()
