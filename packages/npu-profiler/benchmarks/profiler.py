"""Cost of tracing: a program alone, under torch.profiler, and under npu_profiler in its forms.

    python packages/npu-profiler/benchmarks/profiler.py [--repeat 7] [--model DIR] [--json FILE]

Each workload runs in turn under each form, in one process, after a warm-up, so that other load
affects all. The table shows the median time of the work, the best, the cost of each form as the
median of its ratios to the run alone in the same round, and the time that writing takes afterwards.
"again" is the program alone once more: the process waits for `npu-profiler attach`, which is all
that is there when nobody records, and how far the two differ is the noise. With --model a language
model decodes with npu-llm.
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
from npu_profiler.attaching.listener import install
from npu_profiler.config import quiet_kineto

Work = Callable[[], object]
Context = Callable[[Path], contextlib.AbstractContextManager[object]]


def small_ops(device: str) -> Work:
    """1,000 additions and ReLUs of 64 numbers, op by op: the worst case."""
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


def language_model(path: str) -> Work:
    """32 tokens of a language model, after a prompt of 16."""
    from npu_llm import NPUModelForCausalLM

    model = NPUModelForCausalLM.from_pretrained(path)
    prompt = torch.arange(100, 116)[None]

    def work() -> None:
        model.generate(prompt, max_new_tokens=32, min_new_tokens=32, do_sample=False)

    return work


@contextlib.contextmanager
def torch_profiler(path: Path) -> Iterator[None]:
    """torch.profiler alone, with its own export."""
    both = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    with quiet_kineto(), profile(activities=both) as recorded:
        yield
    recorded.export_chrome_trace(str(path))


CONTEXTS: dict[str, Context] = {
    "alone": lambda path: contextlib.nullcontext(),
    "again": lambda path: contextlib.nullcontext(),
    "torch.profiler": torch_profiler,
    "trace": npu_profiler.trace,
    "trace --layers": lambda path: npu_profiler.trace(path, layers=True),
}


def measure(work: Work, repeat: int, directory: Path) -> dict[str, dict[str, float]]:
    """Runs `work` under each form in turn; returns medians, in seconds."""
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
    alone = inside["alone"]
    return {
        name: {
            "work_s": statistics.median(times),
            "best_s": min(times),
            "cost": statistics.median(a / b for a, b in zip(times, alone, strict=True)) - 1,
            "after_s": statistics.median(after[name]),
        }
        for name, times in inside.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--model", help="a language model's folder or GGUF file")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    install()
    # Before the programs are loaded, so that they report layers.
    from npu_runtime import layer_recording

    layer_recording.start(first=0, every=0)
    workloads = {"small ops, cpu": small_ops("cpu"), "training, cpu": train_step("cpu")}
    if importlib.util.find_spec("npu_ops"):
        workloads["small ops, npu"] = small_ops("npu")
    if importlib.util.find_spec("npu_compiler"):
        workloads["compiled decode, npu"] = compiled_decode()
    if arguments.model:
        workloads["language model, npu"] = language_model(arguments.model)
    for work in workloads.values():
        work()
    layer_recording.stop()
    results = {}
    print(
        f"{'workload':<22}{'under':<16}{'median ms':>10}{'best ms':>10}{'cost':>8}{'after ms':>10}"
    )
    with tempfile.TemporaryDirectory() as directory:
        for workload, work in workloads.items():
            results[workload] = measured = measure(work, arguments.repeat, Path(directory))
            for name, times in measured.items():
                print(
                    f"{workload:<22}{name:<16}{times['work_s'] * 1e3:>10.2f}"
                    f"{times['best_s'] * 1e3:>10.2f}{times['cost']:>8.1%}"
                    f"{times['after_s'] * 1e3:>10.1f}"
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
