"""OpenVINO properties of each precision, all set explicitly. Does not import torch.

Devices differ in their defaults, and the CPU plugin's change results: bf16 where the processor has
it, a u8 key/value cache, and 8-bit activations with compressed weights even under the f32 hint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

__all__ = ["PRECISIONS", "compile_tolerant", "device_options"]

_logger = logging.getLogger(__name__)
_Compiled = TypeVar("_Compiled")

# Name -> hint. int8 and int4 refer to the weights; the computation stays in float32.
PRECISIONS = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "int8": "f32",
    "int4": "f32",
}

# Capability that a hint requires of a processor. Measured on OpenVINO 2026.4.1: without float16
# arithmetic the CPU plugin computes in bfloat16 under f16 (relative error 4e-3 in a product of 8
# terms); without bfloat16 arithmetic it is seven times slower under bf16 than under f32 (a token of
# a model of 135M on a Xeon with only AVX-512: 260 ms and 37).
_CAPABILITIES = {"f16": "FP16", "bf16": "BF16"}

# The CPU plugin's snippets generator fails on some graphs (measured on OpenVINO 2026.4.1: "All
# consumers of a Scalar expression are expected to have the same loop IDs", Phi-3 and Mixtral);
# without snippets the same model compiles and is right.
_WITHOUT_SNIPPETS = {"SNIPPETS_MODE": "DISABLE"}


def compile_tolerant(
    compile_model: Callable[[dict[str, str]], _Compiled],
    options: Mapping[str, str],
    *,
    name: str,
    device: str,
) -> tuple[_Compiled, dict[str, str]]:
    """Compiles a model; retries without snippets if the CPU plugin's generator of them fails.

    Args:
        compile_model: called with the options, and again with more of them after a failure.
        options: of the device's compiler.
        name: of the model, for the log.
        device: OpenVINO's name of the device, or SIM.

    Returns:
        The compiled model, and the extra options that it needed.

    Raises:
        RuntimeError: from compile_model, if it fails for another reason or both times.
    """
    try:
        return compile_model(dict(options)), {}
    except RuntimeError as failure:
        # Other plugins refuse unknown options, which would hide the original failure.
        if not _computes_by_cpu_plugin(device) or "snippets" not in str(failure):
            raise
        _logger.info("%s: compiling without snippets, which fail on it: %s", name, failure)
    return compile_model({**options, **_WITHOUT_SNIPPETS}), dict(_WITHOUT_SNIPPETS)


def device_options(
    precision: str,
    *,
    device: str,
    capabilities: Collection[str],
    dynamic_quantization_group_size: int = 0,
    kv_cache: str | None = None,
) -> dict[str, str]:
    """Returns the properties for computing in a precision on a device.

    Args:
        precision: a key of PRECISIONS.
        device: OpenVINO's name of the device, or SIM.
        capabilities: the device's OpenVINO property OPTIMIZATION_CAPABILITIES.
        dynamic_quantization_group_size: activations are quantized to 8 bits in groups of this size
            before products with compressed weights. 0 turns it off.
        kv_cache: precision of KV caches inside stateful models; by default the hint's.
    """
    hint = PRECISIONS[precision]
    kind = device.partition(".")[0]
    if (
        _computes_by_cpu_plugin(device)
        and hint in _CAPABILITIES
        and _CAPABILITIES[hint] not in capabilities
    ):
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
        # A single request should use all cores, also on machines with two sockets.
        options["NUM_STREAMS"] = "1"
    return options


def _computes_by_cpu_plugin(device: str) -> bool:
    """Whether a device is the processor (CPU, CPU.0) or a simulated one (SIM, SIM2)."""
    return device.partition(".")[0].rstrip("0123456789") in ("CPU", "SIM")
