"""One engine with one model in one process: loads it, runs it, and prints what it measured.

    python _families_worker.py JOB    (a Job as JSON; the last line of what it prints is the result)

Run it with the interpreter that has the engine. An engine is a function that loads a model and
returns `run(new_tokens)`, which returns the tokens; a kind is a function that makes its input.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ENGINES", "Job"]

# Returns the tokens of an answer of this many; [] from an engine that does not tell them.
Run = Callable[[int], list[int]]
_SECONDS, _SOURCE, _QUESTION = 30, 128, 32
_WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Job:
    """What a process has to do.

    Attributes:
        engine: a key of ENGINES.
        kind: what the model does: "speech", "text" or "picture".
        place: the engine's form of the weights.
        properties: OpenVINO's, for the peers that run on it.
        new_tokens: how many to generate.
        repeats: how often.
        threads: how many to compute with.
        cache: a folder that npu-llm may keep compiled models in.
    """

    engine: str
    kind: str
    place: str
    properties: dict[str, str]
    new_tokens: int
    repeats: int
    threads: int
    cache: str


def _sound() -> Any:
    """Tones and noise: (samples,) float32 at 16 kHz."""
    import numpy as np

    at = np.arange(_SECONDS * 16000) / 16000
    noise = np.random.default_rng(0).standard_normal(len(at))
    tones = np.sin(2 * np.pi * (200 + 40 * np.floor(at)) * at)
    return (0.3 * tones + 0.1 * noise).astype(np.float32)


def _through_transformers(model: Any, job: Job) -> Run:
    """generate() of transformers, which ours and optimum-intel's models have too."""
    import torch

    asked: dict[str, Any] = {"do_sample": False, "num_beams": 1}
    if job.kind == "text":
        ids = torch.randint(2, 32000, (1, _SOURCE), generator=torch.Generator().manual_seed(0))
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        # As many tokens as asked for, whatever random weights make of them.
        asked |= {"suppress_tokens": [1]}
    elif job.kind == "picture":
        given = _picture(model.config)
    else:
        from transformers import WhisperFeatureExtractor

        extractor = WhisperFeatureExtractor.from_pretrained(job.place)
        asked |= {"language": "en", "task": "transcribe"}

    def run(new_tokens: int) -> list[int]:
        features = dict(_features(extractor)) if job.kind == "speech" else given
        with torch.no_grad():
            found = model.generate(**features, **asked, max_new_tokens=new_tokens)
        tokens: list[int] = found[0].tolist()[-new_tokens:]
        return tokens

    return run


def _picture(config: Any) -> dict[str, Any]:
    """An image that is not cut into tiles, and a question about it, as a processor leaves them."""
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


def _features(extractor: Any) -> Any:
    return extractor(_sound(), sampling_rate=16000, return_tensors="pt")


def load_npu_llm(job: Job, pipeline: str) -> Run:
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
    return _through_transformers(model, job)


def load_transformers(job: Job) -> Run:
    import torch
    import transformers

    torch.set_num_threads(job.threads)
    kinds = {
        "speech": transformers.AutoModelForSpeechSeq2Seq,
        "text": transformers.AutoModelForSeq2SeqLM,
        "picture": transformers.AutoModelForImageTextToText,
    }
    model = kinds[job.kind].from_pretrained(job.place, dtype=torch.float32).eval()
    return _through_transformers(model, job)


def load_optimum(job: Job) -> Run:
    import optimum.intel
    import torch

    torch.set_num_threads(job.threads)
    kinds = {"speech": "OVModelForSpeechSeq2Seq", "text": "OVModelForSeq2SeqLM"}
    properties = {**job.properties, "INFERENCE_NUM_THREADS": str(job.threads)}
    kind = getattr(optimum.intel, kinds[job.kind])
    return _through_transformers(kind.from_pretrained(job.place, ov_config=properties), job)


def load_genai(job: Job) -> Run:
    import openvino_genai

    properties = {"INFERENCE_NUM_THREADS": job.threads, **job.properties}
    pipeline = openvino_genai.WhisperPipeline(job.place, "CPU", **properties)
    sound = _sound().tolist()

    def run(new_tokens: int) -> list[int]:
        result = pipeline.generate(
            sound, max_new_tokens=new_tokens, language="<|en|>", task="transcribe"
        )
        count = result.perf_metrics.get_num_generated_tokens()
        if count < new_tokens:
            raise SystemExit(f"openvino-genai gave {count} tokens, not {new_tokens}")
        return []

    return run


ENGINES: dict[str, Callable[[Job], Run]] = {
    "npu-llm": lambda job: load_npu_llm(job, "dynamic"),
    "npu-llm static": lambda job: load_npu_llm(job, "static"),
    "openvino-genai": load_genai,
    "optimum-intel": load_optimum,
    "transformers": load_transformers,
}


def main(job: Job) -> None:
    started = time.perf_counter()
    run = ENGINES[job.engine](job)
    load_s = time.perf_counter() - started
    run(_WARM_UP_TOKENS)
    times, tokens = [], []
    # Of an answer about a picture, the time to its first token counts.
    wanted = 1 if job.kind == "picture" else job.new_tokens
    for _ in range(job.repeats):
        started = time.perf_counter()
        tokens = run(wanted)
        times.append(time.perf_counter() - started)
        if tokens and len(tokens) != wanted:
            raise SystemExit(f"{job.engine} gave {len(tokens)} tokens, not {wanted}")
    figure = _SECONDS if job.kind == "speech" else wanted
    print(json.dumps({"load_s": load_s, "rate": figure / min(times), "tokens": tokens}))


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
