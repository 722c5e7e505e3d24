"""Speed and memory at a GGUF file's own precision, compared with llama.cpp on the same file.

    python packages/npu-llm/benchmarks/gguf_files.py --work DIR --peers PYTHON

DIR and PYTHON are those of benchmarks/llm.py. Files are quantized by llama.cpp from float32, and
each engine runs in a separate process, alternating with the other. The best of all rounds counts.
Q4_K means a file with all matrices in this type.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path

from _llm_files import MODELS, form_path
from _llm_worker import Job
from llm import run_script

KINDS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K")
ENGINES = ("npu-llm", "llama.cpp")
PROMPTS = (32, 1024)  # tokens


def make_files(model: str, kinds: list[str], options: argparse.Namespace) -> None:
    """Creates missing files."""
    steps = [(sys.executable, "checkpoint", "")]
    steps += [(options.peers, "gguf", kind) for kind in ("F32", *kinds)]
    for python, form, kind in steps:
        if not form_path(options.work, model, form, kind).exists():
            print(f"making {model} {form} {kind}", flush=True)
            arguments = [str(options.work), model, form, *([kind] if kind else [])]
            run_script(python, "_llm_files.py", arguments, options.threads)


def measure(model: str, kind: str, engine: str, number: int, options: argparse.Namespace) -> dict:
    """Returns seconds to the first token and per further token by prompt, and memory."""
    drawn = random.Random(number)
    vocabulary = MODELS[model].get("vocab_size", 40_000)
    job = Job(
        engine=engine,
        place=str(form_path(options.work, model, "gguf", kind)),
        precision=options.dtype,
        properties={},
        prompts=[
            [[drawn.randrange(1000, vocabulary) for _ in range(length)] for _ in range(3)]
            for length in PROMPTS
        ],
        new_tokens=options.new_tokens,
        threads=options.threads,
        cache=str(options.work / "npu-llm-cache"),
    )
    python = sys.executable if engine == "npu-llm" else options.peers
    output, peak = run_script(python, "_llm_worker.py", [json.dumps(asdict(job))], options.threads)
    runs = json.loads(output.splitlines()[-1])["runs"]
    found = {"memory": peak}
    for length in PROMPTS:
        for name in ("first_s", "token_s"):
            found[f"{name} {length}"] = min(run[name] for run in runs if run["prompt"] == length)
    return found


def print_row(kind: str, best: dict[str, dict]) -> None:
    """Prints both engines' figures for a file, and their ratio."""
    cells = []
    for length in PROMPTS:
        ours, theirs = (1 / best[engine][f"token_s {length}"] for engine in ENGINES)
        cells.append(f"{ours:.1f} / {theirs:.1f} = {ours / theirs:.2f}x")
    for length in PROMPTS:
        ours, theirs = (1e3 * best[engine][f"first_s {length}"] for engine in ENGINES)
        cells.append(f"{ours:,.0f} / {theirs:,.0f} = {ours / theirs:.2f}x")
    cells.append(" / ".join(f"{best[engine]['memory'] / 1e6:,.0f}" for engine in ENGINES))
    print(f"| {kind} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--peers", required=True, help="the interpreter that has llama.cpp")
    parser.add_argument("--models", default="smollm2-135m", help=", ".join(MODELS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--dtype", default="auto", help="of npu-llm")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    for model in options.models.split(","):
        make_files(model, kinds, options)
        heads = [f"tokens/s after {length}" for length in PROMPTS]
        heads += [f"first token of {length}, ms" for length in PROMPTS]
        print(f"{model}, npu-llm / llama.cpp")
        print(f"| | {' | '.join(heads)} | anonymous memory, MB |\n|{'---|' * (len(heads) + 2)}")
        for kind in kinds:
            best: dict[str, dict] = {engine: {} for engine in ENGINES}
            for number in range(options.rounds):
                for engine in ENGINES:
                    for name, value in measure(model, kind, engine, number, options).items():
                        best[engine][name] = min(value, best[engine].get(name, value))
            print_row(kind, best)


if __name__ == "__main__":
    main()
