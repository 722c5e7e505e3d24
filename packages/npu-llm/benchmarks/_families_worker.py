"""Benchmark worker: loads and runs one engine with one model, and prints the measurements.

    python _families_worker.py JOB    (a Job as JSON; the last line of what it prints is the result)

Run it with the interpreter of the engine. An engine is a function that loads a model and returns
`run(new_tokens)`, which returns an Answer; a kind is a function that creates its input.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ENGINES", "Job"]

_SECONDS, _SOURCE, _QUESTION = 30, 128, 32
_WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Job:
    """The task of a process.

    Attributes:
        engine: a key of ENGINES.
        kind: the model's task: "speech", "text" or "picture".
        place: path of the weights in the engine's format.
        properties: OpenVINO properties, for engines based on it.
        new_tokens: number of tokens to generate.
        repeats: number of runs.
        threads: number of threads.
        cache: npu-llm's cache directory.
    """

    engine: str
    kind: str
    place: str
    properties: dict[str, str]
    new_tokens: int
    repeats: int
    threads: int
    cache: str


@dataclass(frozen=True)
class Answer:
    """An engine's answer.

    Attributes:
        count: number of generated tokens.
        text: their text, or their ids if the model does not generate text.
    """

    count: int
    text: str


@dataclass(frozen=True)
class Loaded:
    """An engine with its model.

    Attributes:
        run: generates this number of tokens.
        is_compiled: whether the load compiled anything; None if the engine does not report it.
    """

    run: Callable[[int], Answer]
    is_compiled: bool | None = None


def _sound() -> Any:
    """Returns tones and noise: (samples,) float32 at 16 kHz."""
    import numpy as np

    at = np.arange(_SECONDS * 16000) / 16000
    noise = np.random.default_rng(0).standard_normal(len(at))
    tones = np.sin(2 * np.pi * (200 + 40 * np.floor(at)) * at)
    return (0.3 * tones + 0.1 * noise).astype(np.float32)


def _through_transformers(model: Any, job: Job) -> Callable[[int], Answer]:
    """Returns a runner for generate() of transformers, also of ours and optimum-intel's models."""
    import torch

    asked: dict[str, Any] = {"do_sample": False, "num_beams": 1}
    given: dict[str, Any] = {}
    if job.kind == "text":
        ids = torch.randint(2, 32000, (1, _SOURCE), generator=torch.Generator().manual_seed(0))
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        # The requested number of tokens, even with random weights.
        asked |= {"suppress_tokens": [1]}
    elif job.kind == "picture":
        given = _picture(model.config)
    else:
        from transformers import WhisperFeatureExtractor, WhisperTokenizer

        extractor = WhisperFeatureExtractor.from_pretrained(job.place)
        tokenizer = WhisperTokenizer.from_pretrained(job.place)
        sound = _sound()
        asked |= {"language": "en", "task": "transcribe"}

    def run(new_tokens: int) -> Answer:
        features = given
        if job.kind == "speech":
            features = dict(extractor(sound, sampling_rate=16000, return_tensors="pt"))
        with torch.no_grad():
            found = model.generate(**features, **asked, max_new_tokens=new_tokens)
        tokens = found[0].tolist()[-new_tokens:]
        text = tokenizer.decode(tokens) if job.kind == "speech" else str(tokens)
        return Answer(len(tokens), text)

    return run


def _picture(config: Any) -> dict[str, Any]:
    """Returns an image that is not split into tiles, and a question about it, both preprocessed."""
    import torch

    side, patch = config.vision_config.image_size, config.vision_config.patch_size
    places = (side // patch // config.scale_factor) ** 2
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(3, 49000, (_QUESTION,), generator=generator)
    mark = torch.full((places,), config.image_token_id)
    ids = torch.cat([text[:4], mark, text[4:]])[None]
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(1, 1, 3, side, side, generator=generator),
        "pixel_attention_mask": torch.ones(1, 1, side, side, dtype=torch.int64),
    }


def load_npu_llm(job: Job, pipeline: str) -> Loaded:
    import torch

    import npu_llm

    torch.set_num_threads(job.threads)
    kinds: dict[str, Any] = {
        "speech": npu_llm.NPUModelForSpeechSeq2Seq,
        "text": npu_llm.NPUModelForSeq2SeqLM,
        "picture": npu_llm.NPUModelForImageTextToText,
    }
    model = kinds[job.kind].from_pretrained(
        job.place, dtype="float32", pipeline=pipeline, cache_dir=Path(job.cache)
    )
    return Loaded(_through_transformers(model, job), not model.report.from_cache)


def load_transformers(job: Job) -> Loaded:
    import torch
    import transformers

    torch.set_num_threads(job.threads)
    kinds = {
        "speech": transformers.AutoModelForSpeechSeq2Seq,
        "text": transformers.AutoModelForSeq2SeqLM,
        "picture": transformers.AutoModelForImageTextToText,
    }
    model = kinds[job.kind].from_pretrained(job.place, dtype=torch.float32).eval()
    return Loaded(_through_transformers(model, job))


def load_optimum(job: Job) -> Loaded:
    import optimum.intel
    import torch

    torch.set_num_threads(job.threads)
    kinds = {"speech": "OVModelForSpeechSeq2Seq", "text": "OVModelForSeq2SeqLM"}
    properties = {**job.properties, "INFERENCE_NUM_THREADS": str(job.threads)}
    kind = getattr(optimum.intel, kinds[job.kind])
    model = kind.from_pretrained(job.place, ov_config=properties)
    return Loaded(_through_transformers(model, job))


def load_genai(job: Job) -> Loaded:
    import openvino_genai

    properties = {"INFERENCE_NUM_THREADS": job.threads, **job.properties}
    pipeline = openvino_genai.WhisperPipeline(job.place, "CPU", **properties)
    sound = _sound().tolist()

    def run(new_tokens: int) -> Answer:
        result = pipeline.generate(
            sound, max_new_tokens=new_tokens, language="<|en|>", task="transcribe"
        )
        return Answer(result.perf_metrics.get_num_generated_tokens(), result.texts[0])

    return Loaded(run)


ENGINES: dict[str, Callable[[Job], Loaded]] = {
    "npu-llm": lambda job: load_npu_llm(job, "dynamic"),
    "npu-llm static": lambda job: load_npu_llm(job, "static"),
    "openvino-genai": load_genai,
    "optimum-intel": load_optimum,
    "transformers": load_transformers,
}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(job: Job) -> None:
    started = time.perf_counter()
    loaded = ENGINES[job.engine](job)
    load_s = time.perf_counter() - started
    loaded.run(_WARM_UP_TOKENS)
    # For answers about images, the time to first token counts.
    wanted = 1 if job.kind == "picture" else job.new_tokens
    best: dict[str, float] = {}
    for _ in range(job.repeats):
        cpu_s, started = _cpu_s(), time.perf_counter()
        answer = loaded.run(wanted)
        taken = {"wall_s": time.perf_counter() - started, "cpu_s": _cpu_s() - cpu_s}
        best = {name: min(value, best.get(name, value)) for name, value in taken.items()}
        if answer.count != wanted:
            raise SystemExit(f"{job.engine} gave {answer.count} tokens, not {wanted}")
    figure = _SECONDS if job.kind == "speech" else wanted
    told = {"load_s": load_s, "rate": figure / best["wall_s"], "cpu_s": best["cpu_s"]}
    print(json.dumps(told | {"text": answer.text.strip(), "is_compiled": loaded.is_compiled}))


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
