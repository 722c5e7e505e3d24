"""Which OpenVINO properties a precision asks for, all set on purpose.

Devices differ in their defaults, and the CPU plugin's change results: bf16 where the processor has
it, a u8 key/value cache, and activations quantized to 8 bits beside compressed weights even under
the f32 hint. Compressing weights is npu_compiler.quantize's work.
"""

from __future__ import annotations

import torch

import npu_runtime
from npu_compiler.errors import OptionError

__all__ = ["PRECISIONS", "compile_options", "precision_name"]

# Name -> hint. int8 and int4 speak of the weights; what is computed with them stays float32.
PRECISIONS = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "int8": "f32",
    "int4": "f32",
}


def precision_name(dtype: torch.dtype | str) -> str:
    """Returns the name of a precision, from a torch dtype or a name such as "bfloat16".

    Raises:
        OptionError: [unknown-dtype] for anything else.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in PRECISIONS:
        raise OptionError(
            f"dtype: one of {', '.join(PRECISIONS)}; got {dtype!r}. Choose one of these.",
            code="unknown-dtype",
        )
    return name


def compile_options(
    dtype: torch.dtype | str,
    *,
    device: str | None = None,
    dynamic_quantization_group_size: int = 0,
    kv_cache: str | None = None,
) -> dict[str, str]:
    """Returns the OpenVINO properties with which a program computes in a precision.

    Args:
        dtype: float32, bfloat16, float16; or int8, int4, which compute in float32 on compressed
            weights. An NPU computes in float16 whatever float type is asked for, a processor
            without float16 arithmetic computes it in float32.
        device: OpenVINO's name of the device (CPU, GPU, NPU); by default the one that serves.
        dynamic_quantization_group_size: activations in groups of this size are quantized to 8 bits
            before they meet compressed weights: faster, less exact. 0 turns it off.
        kv_cache: precision of key/value caches inside stateful models (f32, bf16, f16, u8); by
            default that of the computation.

    Raises:
        OptionError: [unknown-dtype].
    """
    hint = PRECISIONS[precision_name(dtype)]
    serving = npu_runtime.device_info()
    kind = (device or serving.device).partition(".")[0]
    if kind in ("CPU", "SIM") and hint == "f16" and "FP16" not in serving.capabilities:
        # Without float16 arithmetic the CPU plugin computes in bfloat16 under this hint (measured
        # on OpenVINO 2026.4.1: relative error 4e-3 in a product of 8 terms).
        hint = "f32"
    if kind == "NPU":
        return {"INFERENCE_PRECISION_HINT": "f16", "PERFORMANCE_HINT": "LATENCY"}
    options = {
        "INFERENCE_PRECISION_HINT": hint,
        "KV_CACHE_PRECISION": kv_cache or hint,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(dynamic_quantization_group_size),
        "PERFORMANCE_HINT": "LATENCY",
    }
    if kind == "CPU":
        # One request at a time wants all cores, also on machines with two sockets.
        options["NUM_STREAMS"] = "1"
    return options
