"""Which OpenVINO properties a precision asks for, all set on purpose; known without torch.

Devices differ in their defaults, and the CPU plugin's change results: bf16 where the processor has
it, a u8 key/value cache, and activations quantized to 8 bits beside compressed weights even under
the f32 hint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

__all__ = ["PRECISIONS", "compile_tolerant", "device_options"]

_logger = logging.getLogger(__name__)
_Compiled = TypeVar("_Compiled")

# Name -> hint. int8 and int4 speak of the weights; what is computed with them stays float32.
PRECISIONS = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "int8": "f32",
    "int4": "f32",
}

# What a processor must be capable of for a hint. Measured on OpenVINO 2026.4.1: without float16
# arithmetic the CPU plugin computes in bfloat16 under f16 (relative error 4e-3 in a product of 8
# terms); without bfloat16's it is seven times slower under bf16 than under f32 (a token of a model
# of 135M on a Xeon with AVX-512 alone: 260 ms and 37).
_CAPABILITIES = {"f16": "FP16", "bf16": "BF16"}

# The CPU plugin's generator of fused elementwise kernels fails on some graphs (measured on OpenVINO
# 2026.4.1: "All consumers of a Scalar expression are expected to have the same loop IDs", Phi-3 and
# Mixtral); without it the same model compiles and is right.
_WITHOUT_SNIPPETS = {"SNIPPETS_MODE": "DISABLE"}


def compile_tolerant(
    compile_model: Callable[[dict[str, str]], _Compiled],
    options: Mapping[str, str],
    *,
    name: str,
    device: str,
) -> tuple[_Compiled, dict[str, str]]:
    """Compiles a model; if the CPU plugin's generator of kernels fails on it, without that.

    Args:
        compile_model: called with the options; a second time with more of them.
        options: of the device's compiler.
        name: of the model, for the log.
        device: OpenVINO's name of the device, or SIM.

    Returns:
        The compiled model, and the options that it needed besides.

    Raises:
        RuntimeError: compile_model's, where it fails for another reason or both times.
    """
    try:
        return compile_model(dict(options)), {}
    except RuntimeError as failure:
        # Another plugin refuses an option that it does not know, and would hide why it failed.
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
    """Returns the properties with which a program computes in a precision on a device.

    Args:
        precision: a key of PRECISIONS.
        device: OpenVINO's name of the device, or SIM.
        capabilities: what the device says that it computes in, OpenVINO's
            OPTIMIZATION_CAPABILITIES.
        dynamic_quantization_group_size: activations in groups of this size are quantized to 8 bits
            before they meet compressed weights. 0 turns it off.
        kv_cache: precision of key/value caches inside stateful models; by default the hint's.
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
        # One request at a time wants all cores, also on machines with two sockets.
        options["NUM_STREAMS"] = "1"
    return options


def _computes_by_cpu_plugin(device: str) -> bool:
    """Whether a device is the processor, as CPU and CPU.0, or a simulated one, as SIM and SIM2."""
    return device.partition(".")[0].rstrip("0123456789") in ("CPU", "SIM")
