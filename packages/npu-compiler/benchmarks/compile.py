"""Compares the latency of compiled models: eager, Inductor, OpenVINO's backend and npu.

Run from the root of the repository, on an idle machine:

    NPU_COMPILE_CACHE_SIZE_MB=0 python packages/npu-compiler/benchmarks/compile.py --batches 1,8

Without the cache, the first call compiles. The cost of verification, index checks and NaN is shown
by `--contenders "npu,npu unchecked" --first-rounds 4`. A short run:
`--models bert,vit --contenders eager,npu --rounds 10`.

The models are float32 with random weights, and about as large as their first published versions.
With `--sizes suite` they are those of npu_compiler.suite, which are so small that the overhead of a
call dominates. "openvino" is OpenVINO's backend with aot_autograd, "openvino by graph" without.

Calls of the contenders alternate, so that changes of the machine's speed affect all of them; the
figure is the median of the rounds. A wrong contender is marked and has no ratio. "of peak" is the
rate of a model's products, convolutions and attention, relative to a float32 convolution of 256
channels by oneDNN.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

warnings.simplefilter("ignore")

import transformers as tf  # noqa: E402

from npu_compiler.suite.families.architecture import make  # noqa: E402
from npu_compiler.suite.table import find  # noqa: E402

Inputs = dict[str, torch.Tensor]
Call = Callable[[], Any]
Build = Callable[[int], tuple[torch.nn.Module, Inputs]]


def _ids(batch: int, length: int) -> Inputs:
    return {"input_ids": torch.randint(5, 999, (batch, length))}


def _image(batch: int, size: int = 224) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def _decoder(kind: str, **more: Any) -> Build:
    def build(batch: int) -> tuple[torch.nn.Module, Inputs]:
        config = getattr(tf, f"{kind}Config")(
            vocab_size=8192, hidden_size=576, intermediate_size=1536, num_hidden_layers=12,
            num_attention_heads=9, num_key_value_heads=3, use_cache=False, **more,
        )  # fmt: skip
        return getattr(tf, f"{kind}ForCausalLM")(config), _ids(batch, 64)

    return build


def _text(kind: str, **config: Any) -> Build:
    def build(batch: int) -> tuple[torch.nn.Module, Inputs]:
        model = getattr(tf, f"{kind}Model")(getattr(tf, f"{kind}Config")(**config))
        return model, _ids(batch, 128)

    return build


def _vision(kind: str, **config: Any) -> Build:
    def build(batch: int) -> tuple[torch.nn.Module, Inputs]:
        return getattr(tf, f"{kind}Model")(getattr(tf, f"{kind}Config")(**config)), _image(batch)

    return build


def _gpt2(batch: int) -> tuple[torch.nn.Module, Inputs]:
    return tf.GPT2LMHeadModel(tf.GPT2Config(use_cache=False)), _ids(batch, 64)


def _t5(batch: int) -> tuple[torch.nn.Module, Inputs]:
    return tf.T5EncoderModel(tf.T5Config()), _ids(batch, 128)


def _whisper(batch: int) -> tuple[torch.nn.Module, Inputs]:
    model = tf.WhisperModel(tf.WhisperConfig()).get_encoder()
    return model, {"input_features": torch.randn(batch, 80, 3000)}


def _wav2vec2(batch: int) -> tuple[torch.nn.Module, Inputs]:
    config = tf.Wav2Vec2Config(num_hidden_layers=6)
    return tf.Wav2Vec2Model(config), {"input_values": torch.randn(batch, 16000)}


MODELS: dict[str, Build] = {
    "bert": _text("Bert"),
    "distilbert": _text("DistilBert"),
    "roberta": _text("Roberta", pad_token_id=1),
    "albert": _text("Albert", hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    "t5": _t5,
    "gpt2": _gpt2,
    "llama": _decoder("Llama"),
    "qwen2": _decoder("Qwen2"),
    "phi3": _decoder("Phi3", pad_token_id=0),
    "vit": _vision("ViT"),
    "deit": _vision("DeiT", hidden_size=384, num_attention_heads=6, intermediate_size=1536),
    "swin": _vision("Swin"),
    "convnext": _vision("ConvNext"),
    "resnet": _vision("ResNet"),
    "whisper": _whisper,
    "wav2vec2": _wav2vec2,
}

CONTENDERS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "eager": lambda model: model,
    "inductor": lambda model: torch.compile(model, backend="inductor"),
    "openvino": lambda model: torch.compile(
        model, backend="openvino", options={"aot_autograd": True, "config": {
            "INFERENCE_PRECISION_HINT": "f32"}},
    ),
    "openvino by graph": lambda model: torch.compile(
        model, backend="openvino", options={"config": {"INFERENCE_PRECISION_HINT": "f32"}},
    ),
    "npu": lambda model: torch.compile(model, backend="npu"),
    "npu bf16": lambda model: torch.compile(model, backend="npu", options={"dtype": "bfloat16"}),
    "npu propagate": lambda model: torch.compile(
        model, backend="npu", options={"nan": "propagate"}
    ),
    "npu unchecked": lambda model: torch.compile(
        model,
        backend="npu",
        options={"verify": "off", "check_indices": False, "nan": "fast"},
    ),
    "npu fast": lambda model: torch.compile(model, backend="npu", options={"nan": "fast"}),
}  # fmt: skip


# Sixteen models of npu_compiler.suite; some are other forms of the above.
SUITE_MODELS = tuple({"t5": "t5_encoder", "deit": "dinov2"}.get(name, name) for name in MODELS)


def build(name: str, batch: int, sizes: str) -> tuple[torch.nn.Module, Inputs]:
    """Builds a model in evaluation mode and inputs of a batch size."""
    torch.manual_seed(0)
    if sizes == "published":
        model, inputs = MODELS[name](batch)
        return model.eval(), inputs
    model, inputs = make(find(name))
    return model, {key: value[:1].repeat_interleave(batch, 0) for key, value in inputs.items()}


def first_tensor(output: Any) -> torch.Tensor:
    return next(value for value in output.values() if isinstance(value, torch.Tensor))


def prepare(
    model: torch.nn.Module, inputs: Inputs, contenders: list[str]
) -> tuple[dict[str, Call], dict[str, float], dict[str, float]]:
    """Compiles each contender; returns calls, first-call times in s, and relative errors."""
    expected = first_tensor(model(**inputs))
    calls: dict[str, Call] = {}
    first_s: dict[str, float] = {}
    errors: dict[str, float] = {}
    for contender in contenders:
        torch._dynamo.reset()
        function = CONTENDERS[contender](model)
        started = time.perf_counter()
        try:
            result = first_tensor(function(**inputs))
        except (RuntimeError, TypeError, ValueError) as failure:
            print(f"  {contender}: fails with {str(failure).splitlines()[0][:80]}")
            continue
        first_s[contender] = time.perf_counter() - started
        errors[contender] = float((result.float() - expected).norm() / expected.norm())
        calls[contender] = lambda function=function: function(**inputs)
    return calls, first_s, errors


def measure(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Returns the median time of a call in ms."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            # One call to settle caches and spinning threads of the contender before.
            call()
            started = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - started) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_gflops() -> float:
    """Returns the rate of a convolution, the best of twenty; products are slower here."""
    image = torch.randn(16, 256, 14, 14).to(memory_format=torch.channels_last)
    kernel = torch.randn(256, 256, 3, 3).to(memory_format=torch.channels_last)
    times = []
    for _ in range(20):
        started = time.perf_counter()
        torch.nn.functional.conv2d(image, kernel, padding=1)
        times.append(time.perf_counter() - started)
    return float(2 * 16 * 14 * 14 * 256 * 256 * 9 / min(times) / 1e9)


def count_gflop(model: torch.nn.Module, inputs: Inputs) -> float:
    """Counts the arithmetic of products, convolutions and attention in one call."""
    with FlopCounterMode(display=False) as counter:
        model(**inputs)
    return float(counter.get_total_flops() / 1e9)


def report(
    medians: dict[str, float],
    first_s: dict[str, float],
    errors: dict[str, float],
    logs: dict[str, list[float]],
    limit_ms: float,
) -> None:
    """Prints one model's rows and adds its ratios to the logs."""
    ours = medians.get("npu")
    for contender in first_s if "npu" in first_s else ():
        ratio = first_s[contender] / first_s["npu"]
        logs.setdefault(f"{contender}, first call", []).append(ratio)
    for contender, median_ms in medians.items():
        bound = 5e-2 if "bf16" in contender else 1e-3
        is_right = errors[contender] < bound
        ratio = median_ms / ours if ours and is_right else float("nan")
        if is_right:
            logs.setdefault(contender, []).append(ratio)
        print(
            f"  {contender:24} {median_ms:8.2f} ms  {ratio:5.2f}x ours  first call "
            f"{first_s[contender]:5.1f} s  {limit_ms / median_ms:4.0%} of peak  "
            f"error {errors[contender]:.1e}"
            f"{'' if is_right else '  WRONG'}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help="names with commas; by default sixteen")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--first-rounds", type=int, default=1, help="first calls of each, the best")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--sizes", choices=("published", "suite"), default="published")
    arguments = parser.parse_args()
    contenders = arguments.contenders.split(",")
    default = tuple(MODELS) if arguments.sizes == "published" else SUITE_MODELS
    names = arguments.models.split(",") if arguments.models else default
    if "openvino" in contenders:
        import openvino.torch  # noqa: F401  (registers its backend)
    peak = peak_gflops()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, peak {peak:.0f} GFLOP/s")
    logs: dict[str, list[float]] = {}
    with torch.no_grad():
        small = torch.nn.Linear(4, 4)
        for contender in contenders:  # imports are not part of a first call
            CONTENDERS[contender](small)(torch.randn(2, 4))
        for name in names:
            for batch in map(int, arguments.batches.split(",")):
                print(f"{name}, batch {batch}", flush=True)
                model, inputs = build(name, batch, arguments.sizes)
                limit_ms = count_gflop(model, inputs) / peak * 1e3
                calls, first_s, errors = prepare(model, inputs, contenders)
                for turn in range(1, arguments.first_rounds):
                    # Reversed, because the first to compile warms caches for the next.
                    order = contenders[::-1] if turn % 2 else contenders
                    _, again_s, _ = prepare(model, inputs, order)
                    first_s = {one: min(first_s[one], again_s[one]) for one in first_s}
                report(measure(calls, arguments.rounds), first_s, errors, logs, limit_ms)
    print("geometric mean of time by ours")
    for contender, ratios in logs.items():
        print(
            f"  {contender:24} {statistics.geometric_mean(ratios):5.2f}x over {len(ratios)} models"
        )


if __name__ == "__main__":
    main()
