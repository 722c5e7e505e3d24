"""Benchmark worker: loads one engine with one model, generates, and prints the measurements.

    python _llm_worker.py JOB    (a Job as JSON; the result is the last line of standard output)

Run it with the interpreter of the engine. An engine is a function that loads a model and returns
`generate(prompt, new_tokens)`, which returns the tokens, the seconds to the first one and the
seconds from there to the last. Those of npu-llm and llama.cpp record the time of each token in
`generate.times`.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ENGINES", "Job"]

Answer = tuple[list[int], float, float]
Generate = Callable[[list[int], int], Answer]
_QUIET = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
_WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Job:
    """The task of a process.

    Attributes:
        engine: a key of ENGINES.
        place: path of the weights in the engine's format.
        precision: float32, bfloat16, int8 or int4.
        properties: OpenVINO properties, for engines based on it; empty for their defaults.
        prompts: token ids of several prompts per length, the first one for warm-up. Prompts do not
            repeat, because engines cache prefixes.
        new_tokens: number of tokens to generate.
        threads: number of threads.
        cache: npu-llm's cache directory.
    """

    engine: str
    place: str
    precision: str
    properties: dict[str, str]
    prompts: list[list[list[int]]]
    new_tokens: int
    threads: int
    cache: str


class Clock:
    """A streamer of transformers that records the time of each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """Receives the prompt, then each token."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """No-op."""


def through_transformers(model: Any) -> Generate:
    """Returns generate() of transformers, also of ours and optimum-intel's models."""
    import torch

    def generate(prompt: list[int], new_tokens: int) -> Answer:
        ids = torch.tensor([prompt])
        clock = Clock()
        started = time.perf_counter()
        with torch.no_grad():
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                streamer=clock,
                max_new_tokens=new_tokens,
                **_QUIET,
            )
        first, last = clock.times[1], clock.times[-1]
        generate.times = clock.times[1:]  # type: ignore[attr-defined]
        return output[0, len(prompt) :].tolist(), first - started, last - first

    return generate


def load_npu_llm(job: Job, pipeline: str) -> Generate:
    import torch

    import npu_llm

    torch.set_num_threads(job.threads)
    model = npu_llm.load(
        job.place, dtype=job.precision, pipeline=pipeline, cache_dir=Path(job.cache)
    )
    return through_transformers(model)


def load_transformers(job: Job) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job.threads)
    dtype = getattr(torch, job.precision)
    return through_transformers(AutoModelForCausalLM.from_pretrained(job.place, dtype=dtype).eval())


def load_optimum(job: Job) -> Generate:
    import torch
    from optimum.intel import OVModelForCausalLM

    torch.set_num_threads(job.threads)
    properties = {**job.properties, "INFERENCE_NUM_THREADS": str(job.threads)}
    return through_transformers(OVModelForCausalLM.from_pretrained(job.place, ov_config=properties))


def load_genai(job: Job, backend: str) -> Generate:
    import numpy
    import openvino
    import openvino_genai

    properties = {"INFERENCE_NUM_THREADS": job.threads, **job.properties}
    pipeline = openvino_genai.LLMPipeline(job.place, "CPU", ATTENTION_BACKEND=backend, **properties)

    def generate(prompt: list[int], new_tokens: int) -> Answer:
        config = openvino_genai.GenerationConfig(
            max_new_tokens=new_tokens, ignore_eos=True, do_sample=False
        )
        ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
        started = time.perf_counter()
        result = pipeline.generate(ids, config)
        total = time.perf_counter() - started
        # Its own measurement: a Python streamer would add a call per token.
        first = result.perf_metrics.get_ttft().mean / 1e3
        return list(result.tokens[0]), first, total - first

    return generate


def load_llama_cpp(job: Job) -> Generate:
    """Loads llama.cpp through its C API: the Python class copies the logits of each token."""
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model_options = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(job.place.encode(), model_options)
    if not model:
        raise SystemExit(f"llama.cpp does not load {job.place}")
    options = llama_cpp.llama_context_default_params()
    longest = max(len(prompt) for group in job.prompts for prompt in group)
    options.n_ctx = longest + job.new_tokens
    options.n_batch = max(longest, 32)
    options.n_threads = options.n_threads_batch = job.threads
    context = llama_cpp.llama_init_from_model(model, options)
    sampler = llama_cpp.llama_sampler_init_greedy()
    memory = llama_cpp.llama_get_memory(context)

    def decode(tokens: Any, count: int) -> int:
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, count)):
            raise SystemExit("llama_decode failed")
        return int(llama_cpp.llama_sampler_sample(sampler, context, -1))

    def generate(prompt: list[int], new_tokens: int) -> Answer:
        llama_cpp.llama_memory_clear(memory, True)
        started = time.perf_counter()
        answer = [decode((ctypes.c_int32 * len(prompt))(*prompt), len(prompt))]
        first = time.perf_counter()
        times = [first]
        one = (ctypes.c_int32 * 1)()
        while len(answer) < new_tokens:
            one[0] = answer[-1]
            answer.append(decode(one, 1))
            times.append(time.perf_counter())
        generate.times = times  # type: ignore[attr-defined]
        return answer, first - started, times[-1] - first

    # The callback must live as long as the library may call it.
    generate.silent = silent  # type: ignore[attr-defined]
    return generate


ENGINES: dict[str, Callable[[Job], Generate]] = {
    "npu-llm": lambda job: load_npu_llm(job, "kernels"),
    "npu-llm dynamic": lambda job: load_npu_llm(job, "dynamic"),
    "npu-llm static": lambda job: load_npu_llm(job, "static"),
    "openvino-genai": lambda job: load_genai(job, "PA"),
    "openvino-genai sdpa": lambda job: load_genai(job, "SDPA"),
    "optimum-intel": load_optimum,
    "llama.cpp": load_llama_cpp,
    "transformers": load_transformers,
}


def memory_bytes() -> dict[str, int]:
    """Returns the kernel's counters: VmHWM, peak resident memory; RssAnon, without files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "RssAnon")}


def main(job: Job) -> None:
    started = time.perf_counter()
    generate = ENGINES[job.engine](job)
    load_s = time.perf_counter() - started
    runs = []
    for warm_up, *prompts in job.prompts:
        generate(warm_up, _WARM_UP_TOKENS)
        for prompt in prompts:
            tokens, first_s, rest_s = generate(prompt, job.new_tokens)
            if len(tokens) != job.new_tokens:
                raise SystemExit(f"{job.engine} gave {len(tokens)} tokens, not {job.new_tokens}")
            token_s = rest_s / (job.new_tokens - 1)
            runs.append(
                {"prompt": len(prompt), "first_s": first_s, "token_s": token_s, "tokens": tokens}
            )
    print(json.dumps({"load_s": load_s, "runs": runs, "memory": memory_bytes()}))


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
