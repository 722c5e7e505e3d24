"""Precisions: option names, and the storage and arithmetic types that they select.

Most of it does not need torch.
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
    """Storage type of a model's weights, and dtype of its arithmetic.

    Attributes:
        name: the option's name.
        weights: storage type of the weights; "file" to keep each weight's type.
        compute: dtype of the arithmetic if the device supports it; float32 otherwise.
        dtype_name: name of `torch_dtype`.
        activation_group: how many activations share a scale where they are quantized to 8 bits to
            match compressed weights; 0 if they are not quantized.
    """

    name: str
    weights: str
    compute: str
    dtype_name: str
    activation_group: int = 0

    @property
    def words(self) -> str:
        """The name within a sentence, after "in"."""
        return "the form of its files" if self.weights == "file" else self.name

    @property
    def torch_dtype(self) -> torch.dtype:
        """The value of `model.dtype`."""
        return _torch_dtype(self.dtype_name)


# SmolLM2 in int8, compared with unquantized activations (2026-11, two Zen cores): time to first
# token after 1,024 tokens is 0.68 of theirs, decoding is 1.2 to 1.5 times as fast, perplexity is
# 0.2 % higher. Groups of 32 are slower; groups of 128 are as fast but less exact. int4 weights have
# groups of 64 as well.
_ACTIVATION_GROUP = 64

_PRECISIONS: dict[PrecisionName, Precision] = {
    "file": Precision("file", "file", "bfloat16", "int8", _ACTIVATION_GROUP),
    "float32": Precision("float32", "float32", "float32", "float32"),
    "bfloat16": Precision("bfloat16", "bfloat16", "bfloat16", "bfloat16"),
    "float16": Precision("float16", "float16", "float16", "float16"),
    "int8": Precision("int8", "int8", "bfloat16", "int8", _ACTIVATION_GROUP),
    "int4": Precision("int4", "int4", "bfloat16", "int8", _ACTIVATION_GROUP),
}
# The same for arbitrary text from a user.
PRECISIONS: dict[str, Precision] = {name: _PRECISIONS[name] for name in PRECISION_NAMES}
_HINTS = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def parse_precision(dtype: str | torch.dtype | None) -> Precision | None:
    """Returns the precision for a `dtype` argument; None to choose by the model.

    Args:
        dtype: a name of PRECISIONS, the torch dtype of that name, or None or "auto".

    Raises:
        OptionError: [unknown-dtype] for anything else, listing the choices.
    """
    name = str(dtype).removeprefix("torch.")
    is_torchs = not isinstance(dtype, str) and name in PRECISION_NAMES and name != str(dtype)
    found = parse_dtype(name if is_torchs else dtype)
    return None if found is None else PRECISIONS[found]


# Increase in perplexity of SmolLM2-135M, in percent, when blocks are rounded again, by the type of
# most of its blocks (2,295 tokens, 2026-11-28). In bfloat16 it does not increase, because
# activations stay floats.
_COSTS: dict[str, dict[str, float]] = {
    "Q4_1": {"int8": 0.5, "int4": 22.8},
    "Q5_0": {"int8": 0.4, "int4": 36.5},
    "Q5_1": {"int8": 0.6, "int4": 20.8},
    "Q8_0": {"int8": 0.4, "int4": 22.6},
}


def rounding_cost(quantization: str, precision: Precision) -> str:
    """Returns the cost of rounding again, as the end of a sentence; empty if not measured.

    Args:
        quantization: description of the weights' quantization (ModelFacts.quantization).
        precision: the target precision.
    """
    for kind, costs in _COSTS.items():
        if quantization.startswith(f"GGUF: {kind}") and precision.name in costs:
            percent = costs[precision.name]
            return f", which raises perplexity by {percent:.1f} % (SmolLM2-135M)"
    return ""


def compile_options(
    precision: Precision, kv_cache: KvCache | None = None, *, device: str | None = None
) -> dict[str, str]:
    """Returns OpenVINO's properties for a precision on a device, by default the one in use."""
    serving = device_info()
    return device_options(
        precision.compute,
        device=device or serving.device,
        capabilities=serving.capabilities,
        dynamic_quantization_group_size=precision.activation_group,
        kv_cache=kv_cache,
    )


def rounding_of(precision: Precision) -> torch.dtype:
    """Returns the dtype to which the device in use rounds a program's results or weights.

    Weights of 16 bits, and constants next to integers, are stored as float16 if they fit.
    """
    computed = cache_dtype_name(precision)
    is_exact = computed == "float32" and precision.weights != "float32"
    return _torch_dtype("float16" if is_exact else computed)


def kernels_cache(
    precision: Precision, kv_cache: KvCache | None = None
) -> Literal["float32", "bfloat16", "u8"]:
    """Returns the storage type of keys and values in kernel programs, on any device."""
    if kv_cache is not None:
        return kv_cache
    return "float32" if precision.weights == "float32" else "bfloat16"


def cache_dtype(precision: Precision, *, device: str | None = None) -> torch.dtype:
    """Returns the default dtype of keys and values: the compute dtype of the device."""
    return _torch_dtype(cache_dtype_name(precision, device=device))


def cache_dtype_name(precision: Precision, *, device: str | None = None) -> str:
    """Returns the name of cache_dtype."""
    return _HINTS[compile_options(precision, device=device)["INFERENCE_PRECISION_HINT"]]


def _torch_dtype(name: str) -> torch.dtype:
    import torch  # imported late: callers that need only names do not load torch

    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found
