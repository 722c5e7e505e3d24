"""What tracing costs: a program alone, under torch.profiler, and under npu_profiler.trace.

    python packages/npu-profiler/benchmarks/overhead.py [--repeat 7] [--json FILE]

Each workload runs in turn under each of the three, in one process, after a warm-up; the table shows
the median time of the work itself, its cost over the program alone, and the time that writing the
trace takes afterwards (which the program does not see). What is traced in tests is in `tests/`.
"""

import argparse
import contextlib
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import npu_profiler

Work = Callable[[], object]


def small_ops(device: str) -> Work:
    """2,000 eager ops on 64 numbers: the worst case."""
    x = torch.ones(64, device=device)

    def work() -> None:
        y = x
        for _ in range(1000):
            y = (y + x).relu()

    return work


def train_step(device: str) -> Work:
    """Ten steps of a small transformer layer, forward and backward."""
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True).to(device)
    batch = torch.randn(8, 32, 128, device=device)

    def work() -> None:
        for _ in range(10):
            layer(batch).sum().backward()
            layer.zero_grad()

    return work


def compiled_decode() -> Work:
    """200 runs of a compiled two-layer model: a program each, as in decoding."""
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    )
    compiled = torch.compile(model.to("npu").eval(), backend="npu")
    x = torch.randn(1, 512, device="npu")

    def work() -> None:
        with torch.no_grad():
            for _ in range(200):
                compiled(x)

    return work


@contextlib.contextmanager
def torch_profiler(path: Path) -> Iterator[None]:
    """torch.profiler alone, with its own export."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        yield
    recorded.export_chrome_trace(str(path))


CONTEXTS = {
    "alone": lambda path: contextlib.nullcontext(),
    "torch.profiler": torch_profiler,
    "npu_profiler": npu_profiler.trace,
}


def measure(work: Work, repeat: int, directory: Path) -> dict[str, dict[str, float]]:
    """Runs `work` under each context in turn; returns medians in seconds."""
    inside: dict[str, list[float]] = {name: [] for name in CONTEXTS}
    after: dict[str, list[float]] = {name: [] for name in CONTEXTS}
    work()
    for _ in range(repeat):
        for name, context in CONTEXTS.items():
            with context(directory / "trace.json"):
                start = time.perf_counter()
                work()
                end = time.perf_counter()
            inside[name].append(end - start)
            after[name].append(time.perf_counter() - end)
    return {
        name: {
            "work_s": statistics.median(inside[name]),
            "best_s": min(inside[name]),
            "after_s": statistics.median(after[name]),
        }
        for name in CONTEXTS
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    workloads = {"small ops, cpu": small_ops("cpu"), "training, cpu": train_step("cpu")}
    if importlib.util.find_spec("npu_ops"):
        workloads["small ops, npu"] = small_ops("npu")
        workloads["training, npu"] = train_step("npu")
    if importlib.util.find_spec("npu_compiler"):
        workloads["compiled decode, npu"] = compiled_decode()
    results = {}
    print(
        f"{'workload':<22}{'under':<16}{'median ms':>10}{'best ms':>10}{'cost':>8}{'after ms':>10}"
    )
    with tempfile.TemporaryDirectory() as directory:
        for workload, work in workloads.items():
            results[workload] = measured = measure(work, arguments.repeat, Path(directory))
            for name, times in measured.items():
                cost = times["work_s"] / measured["alone"]["work_s"] - 1
                print(
                    f"{workload:<22}{name:<16}{times['work_s'] * 1e3:>10.2f}"
                    f"{times['best_s'] * 1e3:>10.2f}{cost:>8.1%}{times['after_s'] * 1e3:>10.1f}"
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
