"""Precisions: the names that users may give, and what each means for weights and arithmetic.

Most of it is known without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from npu_compiler.programs.device_options import device_options
from npu_llm.choices import PRECISION_NAMES, KvCache, PrecisionName, parse_dtype
from npu_runtime.info import device_info

if TYPE_CHECKING:
    import torch

__all__ = [
    "PRECISIONS",
    "Precision",
    "cache_dtype",
    "cache_dtype_name",
    "compile_options",
    "kernels_cache",
    "parse_precision",
    "rounding_cost",
    "rounding_of",
]


@dataclass(frozen=True)
class Precision:
    """How a model's weights are stored and what its arithmetic is done in.

    Attributes:
        name: the name a user gives.
        weights: what the weights are stored as; "file" for each as its file has it.
        compute: dtype of the arithmetic, on a device that has it; float32 on another.
        dtype_name: name of `torch_dtype`.
        activation_group: how many activations share a scale where they are quantized to 8 bits to
            match compressed weights; 0 where they stay as they are.
    """

    name: str
    weights: str
    compute: str
    dtype_name: str
    activation_group: int = 0

    @property
    def words(self) -> str:
        """The name as part of a sentence, after "in"."""
        return "the form of its files" if self.weights == "file" else self.name

    @property
    def torch_dtype(self) -> torch.dtype:
        """What `model.dtype` says."""
        return _torch_dtype(self.dtype_name)


# SmolLM2 in int8, compared with unquantized activations (2026-11, two Zen cores): first token after
# 1,024 in 0.68 of the time, 1.2 to 1.5 times the tokens per second, perplexity 0.2 % higher. Groups
# of 32 are slower, those of 128 as fast but less exact; int4 weights have groups of 64 as well.
_ACTIVATION_GROUP = 64

_PRECISIONS: dict[PrecisionName, Precision] = {
    "file": Precision("file", "file", "bfloat16", "int8", _ACTIVATION_GROUP),
    "float32": Precision("float32", "float32", "float32", "float32"),
    "bfloat16": Precision("bfloat16", "bfloat16", "bfloat16", "bfloat16"),
    "float16": Precision("float16", "float16", "float16", "float16"),
    "int8": Precision("int8", "int8", "bfloat16", "int8", _ACTIVATION_GROUP),
    "int4": Precision("int4", "int4", "bfloat16", "int8", _ACTIVATION_GROUP),
}
# The same, for any text that a user may give.
PRECISIONS: dict[str, Precision] = {name: _PRECISIONS[name] for name in PRECISION_NAMES}
_HINTS = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def parse_precision(dtype: str | torch.dtype | None) -> Precision | None:
    """Returns the precision for what a user passed as `dtype`; None to choose by the model.

    Args:
        dtype: a name of PRECISIONS, the torch dtype of that name, or None or "auto".

    Raises:
        OptionError: [unknown-dtype] for anything else, listing the choices.
    """
    name = str(dtype).removeprefix("torch.")
    is_torchs = not isinstance(dtype, str) and name in PRECISION_NAMES and name != str(dtype)
    found = parse_dtype(name if is_torchs else dtype)
    return None if found is None else PRECISIONS[found]


# How much higher the perplexity of SmolLM2-135M is when the blocks that most of its weights are in
# are rounded again, in percent (2,295 tokens, 2026-11-28). In bfloat16 it is as
# low or lower, since activations stay floats.
_COSTS: dict[str, dict[str, float]] = {
    "Q4_1": {"int8": 0.5, "int4": 22.8},
    "Q5_0": {"int8": 0.4, "int4": 36.5},
    "Q5_1": {"int8": 0.6, "int4": 20.8},
    "Q8_0": {"int8": 0.4, "int4": 22.6},
}


def rounding_cost(quantization: str, precision: Precision) -> str:
    """Returns what rounding again costs, as the end of a sentence; empty if it was not measured.

    Args:
        quantization: how the weights are quantized, in words (ModelFacts.quantization).
        precision: what they are rounded to.
    """
    for kind, costs in _COSTS.items():
        if quantization.startswith(f"GGUF: {kind}") and precision.name in costs:
            percent = costs[precision.name]
            return f", which raises perplexity by {percent:.1f} % (SmolLM2-135M)"
    return ""


def compile_options(
    precision: Precision, kv_cache: KvCache | None = None, *, device: str | None = None
) -> dict[str, str]:
    """OpenVINO's properties for a precision on a device, by default the one in use."""
    serving = device_info()
    return device_options(
        precision.compute,
        device=device or serving.device,
        capabilities=serving.capabilities,
        dynamic_quantization_group_size=precision.activation_group,
        kv_cache=kv_cache,
    )


def rounding_of(precision: Precision) -> torch.dtype:
    """The dtype to which a program's results or weights are rounded on the device in use.

    Weights of 16 bits, and constants beside integers, are stored as float16 where they fit.
    """
    computed = cache_dtype_name(precision)
    is_exact = computed == "float32" and precision.weights != "float32"
    return _torch_dtype("float16" if is_exact else computed)


def kernels_cache(
    precision: Precision, kv_cache: KvCache | None = None
) -> Literal["float32", "bfloat16", "u8"]:
    """What kernel programs store keys and values as, on any device."""
    if kv_cache is not None:
        return kv_cache
    return "float32" if precision.weights == "float32" else "bfloat16"


def cache_dtype(precision: Precision, *, device: str | None = None) -> torch.dtype:
    """The default dtype of keys and values: what the device computes in, or the one in use."""
    return _torch_dtype(cache_dtype_name(precision, device=device))


def cache_dtype_name(precision: Precision, *, device: str | None = None) -> str:
    """The name of cache_dtype."""
    return _HINTS[compile_options(precision, device=device)["INFERENCE_PRECISION_HINT"]]


def _torch_dtype(name: str) -> torch.dtype:
    import torch  # late: what asks for names needs none

    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found
