"""Sentences a second of MiniLM at batch 1 and 64, against sentence-transformers' backends.

    python benchmarks/embeddings.py MODEL [--sentences 256] [--rounds 3]

All of them run in this process, in turns, so that a busy machine slows each alike; the best round
counts. Backends that are not installed are left out and named.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from npu_llm import NPUModelForFeatureExtraction

_WORDS = [
    "the",
    "a",
    "river",
    "town",
    "light",
    "of",
    "over",
    "under",
    "old",
    "new",
    "people",
    "walk",
    "and",
    "talk",
    "about",
    "many",
    "things",
]


def main() -> int:
    """Runs the measurement and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    draws = random.Random(0)
    texts = [
        " ".join(draws.choice(_WORDS) for _ in range(draws.randint(3, 60)))
        for _ in range(options.sentences)
    ]
    encoders = _encoders(options.model)
    reference = torch.as_tensor(encoders["sentence-transformers, torch"](texts, 64))
    for batch in (1, 64):
        some = texts if batch > 1 else texts[: max(len(texts) // 4, 8)]
        best: dict[str, float] = {}
        for _ in range(options.rounds):
            for name, encode in encoders.items():
                encode(some[:batch], batch)
                began = time.perf_counter()
                if batch == 1:
                    for text in some:
                        encode([text], 1)
                else:
                    encode(some, batch)
                speed = len(some) / (time.perf_counter() - began)
                best[name] = max(best.get(name, 0.0), speed)
        for name, speed in best.items():
            found = torch.as_tensor(encoders[name](texts, 64))
            least = float(torch.nn.functional.cosine_similarity(found, reference).min())
            print(f"batch {batch:2}  {name:32} {speed:8.1f} sentences/s  cosine >= {least:.6f}")
    return 0


def _encoders(model: str) -> dict[str, Callable[[list[str], int], Any]]:
    found: dict[str, Callable[[list[str], int], Any]] = {}
    for dtype in ("float32", "int8"):
        ours = NPUModelForFeatureExtraction.from_pretrained(model, dtype=dtype)
        found[f"npu-llm, {dtype}"] = lambda texts, batch, ours=ours: ours.encode(
            texts, batch_size=batch
        )
    from sentence_transformers import SentenceTransformer

    for backend in ("torch", "onnx", "openvino"):
        try:
            peer = SentenceTransformer(model, backend=backend, device="cpu")
        except Exception as failure:
            if backend == "torch":
                raise  # what the others are compared with
            print(f"left out: {backend}: {str(failure).splitlines()[0]}", file=sys.stderr)
            continue
        found[f"sentence-transformers, {backend}"] = lambda texts, batch, peer=peer: peer.encode(
            texts, batch_size=batch, show_progress_bar=False
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
