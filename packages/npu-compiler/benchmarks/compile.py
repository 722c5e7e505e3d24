"""Latency of compiled models: eager, Inductor, OpenVINO's own backend, and ours, in one table.

Run from the root of the repository, on a machine that does nothing else:

    python packages/npu-compiler/benchmarks/compile.py --models bert,gpt2,vit,resnet --rounds 30

The models have random weights and the sizes of their first published versions, batch 1, float32.
Calls of the contenders alternate, so that a change of the machine's speed meets all of them; the
figure is the median over the rounds. A contender that is wrong is marked so and gets no ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

warnings.simplefilter("ignore")

import transformers as tf  # noqa: E402

Inputs = dict[str, torch.Tensor]
Call = Callable[[], Any]


def bert() -> tuple[torch.nn.Module, Inputs]:
    return tf.BertModel(tf.BertConfig()), {"input_ids": torch.randint(5, 999, (1, 128))}


def gpt2() -> tuple[torch.nn.Module, Inputs]:
    model = tf.GPT2LMHeadModel(tf.GPT2Config(use_cache=False))
    return model, {"input_ids": torch.randint(5, 999, (1, 64))}


def vit() -> tuple[torch.nn.Module, Inputs]:
    return tf.ViTModel(tf.ViTConfig()), {"pixel_values": torch.randn(1, 3, 224, 224)}


def resnet() -> tuple[torch.nn.Module, Inputs]:
    model = tf.ResNetForImageClassification(tf.ResNetConfig())
    return model, {"pixel_values": torch.randn(1, 3, 224, 224)}


def llama() -> tuple[torch.nn.Module, Inputs]:
    config = tf.LlamaConfig(
        vocab_size=8192, hidden_size=576, intermediate_size=1536, num_hidden_layers=12,
        num_attention_heads=9, num_key_value_heads=3, use_cache=False,
    )  # fmt: skip
    return tf.LlamaForCausalLM(config), {"input_ids": torch.randint(5, 999, (1, 64))}


MODELS = {"bert": bert, "gpt2": gpt2, "vit": vit, "resnet": resnet, "llama": llama}

CONTENDERS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "eager": lambda model: model,
    "inductor": lambda model: torch.compile(model, backend="inductor"),
    "openvino": lambda model: torch.compile(
        model, backend="openvino", options={"aot_autograd": True, "config": {
            "INFERENCE_PRECISION_HINT": "f32"}},
    ),
    "npu": lambda model: torch.compile(model, backend="npu"),
    "npu bf16": lambda model: torch.compile(model, backend="npu", options={"dtype": "bfloat16"}),
}  # fmt: skip


def first_tensor(output: Any) -> torch.Tensor:
    return next(value for value in output.values() if isinstance(value, torch.Tensor))


def prepare(
    name: str, contenders: list[str]
) -> tuple[dict[str, Call], dict[str, float], dict[str, float]]:
    """Compiles each contender; returns calls, first-call times in s, and relative errors."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model = model.eval()
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
            # The contender before left its caches and spinning threads: one call to settle.
            call()
            started = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - started) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    contenders = arguments.contenders.split(",")
    if "openvino" in contenders:
        import openvino.torch  # noqa: F401  (registers its backend)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    logs: dict[str, list[float]] = {}
    with torch.no_grad():
        for name in arguments.models.split(","):
            print(name, flush=True)
            calls, first_s, errors = prepare(name, contenders)
            medians = measure(calls, arguments.rounds)
            ours = medians.get("npu")
            for contender, median_ms in medians.items():
                bound = 5e-2 if "bf16" in contender else 1e-3
                is_right = errors[contender] < bound
                ratio = median_ms / ours if ours and is_right else float("nan")
                if is_right:
                    logs.setdefault(contender, []).append(ratio)
                print(
                    f"  {contender:9} {median_ms:8.2f} ms  {ratio:5.2f}x ours  first call "
                    f"{first_s[contender]:5.1f} s  error {errors[contender]:.1e}"
                    f"{'' if is_right else '  WRONG'}",
                    flush=True,
                )
    print("geometric mean of time by ours")
    for contender, ratios in logs.items():
        print(
            f"  {contender:9} {statistics.geometric_mean(ratios):5.2f}x over {len(ratios)} models"
        )


if __name__ == "__main__":
    main()
