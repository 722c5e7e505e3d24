"""Speed of generation beside transformers eager and openvino-genai, and beside the memory's speed.

    python packages/npu-llm/benchmarks/generate.py [--new-tokens 128] [--dtypes float32,int8]

One run, all engines in turn and several rounds, so that a busy machine troubles all of them alike;
of the rounds the best counts. TTFT is the time to the first token of a prompt, tokens/s the rate
after it. The last column is the share of the bound: reading the weights that a token needs once, at
the bandwidth that a plain read of a large array reaches here.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, BatchEncoding
from transformers.generation.streamers import BaseStreamer

from npu_llm import NPUModelForCausalLM
from npu_llm.source import find_installed_weights

PROMPTS = (32, 512)  # tokens


@dataclass
class Best:
    """The best round of an engine."""

    first_s: float = float("inf")
    token_s: float = float("inf")


class Clock(BaseStreamer):
    """Notes when tokens come."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompt, then each token."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Has nothing to do."""


def measure(generate: Callable[[Clock], object], best: Best) -> None:
    clock = Clock()
    started = time.perf_counter()
    generate(clock)
    first, last = clock.times[1], clock.times[-1]
    best.first_s = min(best.first_s, first - started)
    best.token_s = min(best.token_s, (last - first) / (len(clock.times) - 2))


def read_bandwidth(size_bytes: int = 1 << 30) -> float:
    """Bytes per second of summing a large array with all threads, the best of five."""
    array = torch.ones(size_bytes // 8, dtype=torch.int64)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        array.sum()
        seconds.append(time.perf_counter() - started)
    return size_bytes / min(seconds)


def weight_bytes(model: Any, dtype: str) -> float:
    """Bytes that a token reads at least: every weight once."""
    count = sum(weight.numel() for weight in model.parameters())
    return count * {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "int4": 0.53}[dtype]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtypes", default="float32,bfloat16,int8,int4")
    options = parser.parse_args()
    source = find_installed_weights()
    reference = AutoModelForCausalLM.from_pretrained(
        source.folder, gguf_file=source.gguf_file, dtype=torch.float32
    ).eval()
    quiet = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    engines: dict[str, Callable[[torch.Tensor, Clock], object]] = {}

    def through_transformers(model: Any) -> Callable[[torch.Tensor, Clock], object]:
        def generate(ids: torch.Tensor, clock: Clock) -> object:
            inputs = BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
            return model.generate(
                **inputs, streamer=clock, max_new_tokens=options.new_tokens, **quiet
            )

        return generate

    engines["transformers float32"] = through_transformers(reference)
    with tempfile.TemporaryDirectory() as cache:
        for dtype in options.dtypes.split(","):
            model = NPUModelForCausalLM.from_pretrained(
                source.path, dtype=dtype, cache_dir=Path(cache)
            )
            engines[f"npu-llm {dtype}"] = through_transformers(model)
        run(engines, options.rounds, reference)


def run(engines: dict[str, Any], rounds: int, reference: Any) -> None:
    bandwidth = read_bandwidth()
    print(f"{torch.get_num_threads()} threads; memory is read at {bandwidth / 1e9:.1f} GB/s")
    torch.manual_seed(0)
    for length in PROMPTS:
        ids = torch.randint(100, 40_000, (1, length))
        best = {name: Best() for name in engines}
        for _ in range(rounds):
            for name, generate in engines.items():
                measure(lambda clock, ids=ids, generate=generate: generate(ids, clock), best[name])
        base = best["transformers float32"]
        print(f"\nprompt of {length} tokens")
        print(f"{'engine':24}{'TTFT ms':>9}{'x':>6}{'tokens/s':>10}{'x':>6}{'of bound':>10}")
        for name, result in best.items():
            dtype = name.rsplit(" ", 1)[-1]
            share = weight_bytes(reference, dtype) / bandwidth / result.token_s
            print(
                f"{name:24}{result.first_s * 1e3:9.1f}{base.first_s / result.first_s:6.2f}"
                f"{1 / result.token_s:10.1f}{base.token_s / result.token_s:6.2f}{share:10.0%}"
            )


if __name__ == "__main__":
    main()
