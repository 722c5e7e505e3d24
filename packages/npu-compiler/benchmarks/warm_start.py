"""First results in new processes: with an empty cache and with a filled one, as a ratio.

Run from the root of the repository, on a machine that does nothing else:

    python packages/npu-compiler/benchmarks/warm_start.py --rounds 5

Three doors: `torch.compile(model, backend="npu")`, `npu_compiler.compile(model)`, and
`npu_compiler.load(folder)` in a process without torch. "first result" is the time from just before
that call to the result of the first run; modules are built, and torch and transformers imported,
before. "process" is all of a process, with its imports and the model's construction. Every
measurement is a process of its own; a cold one (empty cache) and a warm one (the cache that it
left) take turns, so that a change of the machine's speed meets both. The figure is the median.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DOORS = ("torch.compile", "npu_compiler.compile", "npu_compiler.load")
MODELS = ("bert", "llama")


def build(name: str) -> tuple[Any, Any]:
    """Returns a model with random seeded weights and its input."""
    import torch
    import transformers as tf

    torch.manual_seed(0)
    if name == "bert":
        return tf.BertModel(tf.BertConfig()).eval(), torch.randint(0, 30000, (1, 128))
    config = tf.LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=8000,
        use_cache=False,
    )
    return tf.LlamaModel(config).eval(), torch.randint(0, 8000, (1, 128))


def first_result(door: str, model_name: str, folder: str) -> dict[str, float]:
    """Makes one first result in this process; returns its time and what was compiled for it."""
    if door == "npu_compiler.load":
        import numpy as np

        import npu_compiler

        ids = np.zeros((1, 128), np.int64)
        started = time.perf_counter()
        loaded = npu_compiler.load(folder)
        loaded(ids)
        return {"first": time.perf_counter() - started, "compiled": int(not loaded.from_cache)}
    import torch

    model, ids = build(model_name)
    started = time.perf_counter()
    with torch.no_grad():
        if door == "torch.compile":
            torch.compile(model, backend="npu")(ids)
        else:
            import npu_compiler

            npu_compiler.compile(model)(ids)
    spent = time.perf_counter() - started
    from npu_compiler import compile_statistics

    return {"first": spent, "compiled": compile_statistics().compiled}


def measure(door: str, model: str, cache: Path, folder: Path) -> dict[str, float]:
    """Runs one process; returns its figures, "process" among them."""
    command = [sys.executable, __file__, "--child", door, "--models", model, "--folder", folder]
    environment = {**os.environ, "NPU_COMPILE_CACHE_DIR": str(cache)}
    started = time.perf_counter()
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    process = time.perf_counter() - started
    return {**json.loads(done.stdout.splitlines()[-1]), "process": process}


def compare(door: str, model: str, rounds: int, place: Path) -> str:
    """Returns a line of the table."""
    cache, folder = place / "cache", place / model
    figures: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(rounds):
        shutil.rmtree(cache, ignore_errors=True)
        for state in ("cold", "warm"):
            figures[state].append(measure(door, model, cache, folder))

    def median(state: str, what: str) -> float:
        return statistics.median(figure[what] for figure in figures[state])

    compiled = max(int(figure["compiled"]) for figure in figures["warm"])
    cells = [f"{door:22}{model:7}"]
    for what in ("first", "process"):
        cold, warm = median("cold", what), median("warm", what)
        cells.append(f"{cold:8.2f} {warm:8.2f} {warm / cold:7.0%}")
    return "  ".join([*cells, f"{compiled:8}"])


def main() -> None:
    """Prints one line per door and model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--doors", default=",".join(DOORS))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(first_result(given.child, given.models, given.folder)))
        return
    head = f"{'cold s':>8} {'warm s':>8} {'ratio':>7}"
    print(f"{'':29}  {'first result':^25}  {'process':^25}")
    print(f"{'door':22}{'model':7}  {head}  {head}  compiled warm", flush=True)
    with tempfile.TemporaryDirectory(prefix="npu-warm-start-") as name:
        place = Path(name)
        for model in given.models.split(","):
            if "npu_compiler.load" in given.doors:
                import npu_compiler

                module, ids = build(model)
                npu_compiler.export(module, (ids,), place / model)
            for door in given.doors.split(","):
                print(compare(door, model, given.rounds, place), flush=True)


if __name__ == "__main__":
    main()
