"""Whether programs that use only the CPU keep their speed with the platform installed.

    python packages/npu-runtime/benchmarks/cpu_unchanged.py [--runs N]

Runs the same CPU-only work in fresh processes with and without the platform
(TORCH_DEVICE_BACKEND_AUTOLOAD=0), in turn, and prints for each kind of work both medians, their
ratio and the spread between runs without it (half the distance of the quartiles over the median):
a ratio inside the spread does not count as a difference. No code of the platform runs there:
torch's CPU allocator is wrapped when the first op runs on npu.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

RUNS = 10


def loops() -> dict[str, tuple[Callable[[], object], int]]:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    small, large = torch.ones(8), torch.ones(1 << 20)
    matrix = torch.randn(256, 256)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(16, 64)
    convolution, image = torch.nn.Conv2d(8, 16, 3), torch.randn(4, 8, 32, 32)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return {
        "small add, fresh result": (lambda: small + small, 20_000),
        "empty of 32 bytes": (lambda: torch.empty(8), 20_000),
        "4 MB add, fresh result": (lambda: large + large, 40),
        "matmul 256": (lambda: matrix @ matrix, 200),
        "slice": (lambda: matrix[1:, ::2], 10_000),
        "convolution": (lambda: convolution(image), 100),
        "training step": (step, 100),
    }


def measure() -> dict[str, float]:
    times = {}
    for label, (call, calls) in loops().items():
        for _ in range(calls // 10):
            call()
        samples = []
        for _ in range(5):
            start = time.process_time_ns()
            for _ in range(calls):
                call()
            samples.append((time.process_time_ns() - start) / calls / 1000)
        times[label] = min(samples)
    return times


def in_a_process(*, platform: bool) -> dict[str, float]:
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(platform))}
    command = [sys.executable, __file__, "--measure"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    times: dict[str, float] = json.loads(done.stdout)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure()))
        return
    runs = [
        (in_a_process(platform=False), in_a_process(platform=True)) for _ in range(arguments.runs)
    ]
    print(f"{'CPU only':28}{'without':>12}{'with':>12}{'ratio':>8}{'spread':>8}  (us)")
    for label in runs[0][0]:
        without = [run[0][label] for run in runs]
        median = statistics.median(without)
        with_it = statistics.median(run[1][label] for run in runs)
        quartiles = statistics.quantiles(without, n=4)
        spread = (quartiles[2] - quartiles[0]) / 2 / median
        print(f"{label:28}{median:>12.2f}{with_it:>12.2f}{with_it / median:>8.3f}{spread:>8.3f}")


if __name__ == "__main__":
    main()
