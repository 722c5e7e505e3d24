"""Batch throughput in tokens/s, compared with openvino-genai's continuous batching.

    python packages/npu-llm/benchmarks/batches.py --work DIR --peers PYTHON

DIR and PYTHON are those of llm.py in this directory, which also creates the weights' formats. Each
sequence has a separate prompt, all of one length; the time is that of a whole batch, including
prompts. A measurement runs in a separate process; the best round counts. OpenVINO gets npu-llm's
properties. Reading weights is the bottleneck: with one sequence every weight is read for one row,
with eight for eight, until the arithmetic takes as long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENGINES = ("npu-llm", "openvino-genai")
_WARM_UP_TOKENS = 4

Run = Callable[[list[list[int]], int], list[list[int]]]


def load_npu_llm(job: dict[str, Any]) -> Run:
    import torch

    from npu_llm import NPUModelForCausalLM

    torch.set_num_threads(job["threads"])
    model = NPUModelForCausalLM.from_pretrained(
        job["place"], dtype=job["precision"], pipeline="kernels", cache_dir=job["cache"]
    )

    def run(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        with torch.no_grad():
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        answers: list[list[int]] = output[:, ids.shape[1] :].tolist()
        return answers

    return run


def load_genai(job: dict[str, Any]) -> Run:
    import numpy
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 2
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        job["place"],
        scheduler,
        "CPU",
        {"INFERENCE_NUM_THREADS": job["threads"], **job["properties"]},
    )

    def run(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        config = openvino_genai.GenerationConfig(
            max_new_tokens=new_tokens, ignore_eos=True, do_sample=False
        )
        ids = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in prompts]
        results = pipeline.generate(ids, [config] * len(ids))
        return [list(one.m_generation_ids[0]) for one in results]

    return run


def work(job: dict[str, Any]) -> None:
    """Loads an engine and runs a batch; prints the seconds."""
    run = {"npu-llm": load_npu_llm, "openvino-genai": load_genai}[job["engine"]](job)
    run(job["warm_up"], _WARM_UP_TOKENS)
    started = time.perf_counter()
    answers = run(job["prompts"], job["new_tokens"])
    passed = time.perf_counter() - started
    lengths = {len(answer) for answer in answers}
    if lengths != {job["new_tokens"]}:
        raise SystemExit(f"{job['engine']} gave answers of {lengths} tokens")
    print(json.dumps({"seconds": passed}))


def measure(engine: str, precision: str, count: int, number: int, options: Any) -> float:
    """Returns the tokens/s of a batch in a separate process."""
    from _llm_files import form_path
    from llm import shared_properties

    form, kind = ("checkpoint", "") if engine == "npu-llm" else ("openvino", precision)
    numbers = random.Random(number)

    def prompts() -> list[list[int]]:
        return [
            [numbers.randrange(100, 40_000) for _ in range(options.prompt)] for _ in range(count)
        ]

    job = {
        "engine": engine,
        "place": str(form_path(options.work, options.model, form, kind)),
        "precision": precision,
        "properties": shared_properties(precision),
        "warm_up": prompts(),
        "prompts": prompts(),
        "new_tokens": options.new_tokens,
        "threads": options.threads,
        "cache": str(options.work / "npu-llm-cache"),
    }
    python = sys.executable if engine == "npu-llm" else options.peers
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: options.threads]))
    output = subprocess.run(
        ["taskset", "-c", cores, python, "-W", "ignore", __file__, "--job", json.dumps(job)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    ).stdout
    return float(count * options.new_tokens / json.loads(output.splitlines()[-1])["seconds"])


def listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help="keeps weights")
    parser.add_argument("--peers", default=sys.executable, help="the other engine's interpreter")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precisions", type=listed, default=["int8", "int4"])
    parser.add_argument("--counts", type=lambda text: [*map(int, listed(text))], default=[1, 8, 16])
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.job:
        work(options.job)
        return
    print("precision  sequences  " + "  ".join(f"{name:>14}" for name in ENGINES) + "   tokens/s")
    for precision in options.precisions:
        for count in options.counts:
            best = dict.fromkeys(ENGINES, 0.0)
            for number in range(options.rounds):
                for engine in ENGINES:
                    rate = measure(engine, precision, count, number, options)
                    best[engine] = max(best[engine], rate)
            rates = "  ".join(f"{best[name]:14.1f}" for name in ENGINES)
            print(f"{precision:9}  {count:9}  {rates}", flush=True)


if __name__ == "__main__":
    main()
