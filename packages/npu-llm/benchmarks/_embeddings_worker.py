"""Benchmark worker: loads and times one engine with one embedding model, and saves vectors.

    python _embeddings_worker.py JOB

JOB is a Job as JSON; the last line of output is the result. Run it with the interpreter of the
engine. An engine is a function that loads a model and returns `encode(texts, batch)`, which returns
vectors (texts, width) as a NumPy array.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BATCHES", "ENGINES", "Job"]

Encode = Callable[[list[str], int], Any]
BATCHES = (1, 64)
_WORDS = "the a river town light of over under old new people walk and talk about many things"


@dataclass(frozen=True)
class Job:
    """The task of a process.

    Attributes:
        engine: a key of ENGINES.
        model: a folder in sentence-transformers' format.
        sentences: number of sentences.
        repeats: measurements per batch size.
        threads: number of threads.
        cache: npu-llm's cache directory.
        vectors: output file for all vectors, in numpy.save's format.
    """

    engine: str
    model: str
    sentences: int
    repeats: int
    threads: int
    cache: str
    vectors: str


def _texts(count: int) -> list[str]:
    """Returns texts of 3 to 60 words."""
    draws, words = random.Random(0), _WORDS.split()
    return [
        " ".join(draws.choice(words) for _ in range(draws.randint(3, 60))) for _ in range(count)
    ]


def load_npu_llm(job: Job, dtype: str) -> tuple[Encode, bool]:
    import torch

    from npu_llm import NPUModelForFeatureExtraction

    torch.set_num_threads(job.threads)
    model = NPUModelForFeatureExtraction.from_pretrained(
        job.model, dtype=dtype, cache_dir=Path(job.cache)
    )

    def encode(texts: list[str], batch: int) -> Any:
        return model.encode(texts, batch_size=batch).numpy()

    return encode, not model.report.from_cache


def load_peer(job: Job, backend: str, settings: dict[str, Any]) -> tuple[Encode, bool]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(job.threads)
    if backend == "onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job.threads
        settings = {"session_options": options, "provider": "CPUExecutionProvider", "export": True}
    if backend == "openvino":
        properties = {"INFERENCE_NUM_THREADS": str(job.threads), **settings}
        settings = {"ov_config": properties, "export": True}
    model = SentenceTransformer(job.model, backend=backend, device="cpu", model_kwargs=settings)

    def encode(texts: list[str], batch: int) -> Any:
        return model.encode(texts, batch_size=batch, show_progress_bar=False)

    return encode, True


# OpenVINO's default, "openvino defaults", is bfloat16 on processors that support it.
ENGINES: dict[str, Callable[[Job], tuple[Encode, bool]]] = {
    "npu-llm": lambda job: load_npu_llm(job, "float32"),
    "npu-llm bfloat16": lambda job: load_npu_llm(job, "bfloat16"),
    "npu-llm int8": lambda job: load_npu_llm(job, "int8"),
    "torch": lambda job: load_peer(job, "torch", {}),
    "openvino": lambda job: load_peer(job, "openvino", {"INFERENCE_PRECISION_HINT": "f32"}),
    "openvino defaults": lambda job: load_peer(job, "openvino", {}),
    "onnx": lambda job: load_peer(job, "onnx", {}),
}


def _measure(encode: Encode, texts: list[str], batch: int) -> dict[str, float]:
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    if batch == 1:
        for text in texts:
            encode([text], 1)
    else:
        encode(texts, batch)
    taken_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"rate": len(texts) / taken_s, "cpu_ms": cpu_s / len(texts) * 1e3}


def main(job: Job) -> None:
    import numpy as np

    texts = _texts(job.sentences)
    started = time.perf_counter()
    encode, is_compiled = ENGINES[job.engine](job)
    result: dict[str, Any] = {"load_s": time.perf_counter() - started, "is_compiled": is_compiled}
    for batch in BATCHES:
        some = texts if batch > 1 else texts[: max(len(texts) // 4, 8)]
        _measure(encode, some, batch)
        runs = [_measure(encode, some, batch) for _ in range(job.repeats)]
        result[str(batch)] = max(runs, key=lambda run: run["rate"])
    np.save(job.vectors, np.asarray(encode(texts, BATCHES[-1])))
    print(json.dumps(result))


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
