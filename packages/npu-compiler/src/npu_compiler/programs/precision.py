"""OpenVINO properties of each precision on the current device."""

from __future__ import annotations

import torch

import npu_runtime
from npu_compiler.errors import OptionError
from npu_compiler.programs.device_options import PRECISIONS, device_options
from npu_runtime.public_calls import public_call

__all__ = ["PRECISIONS", "compile_options", "precision_name"]


def precision_name(dtype: torch.dtype | str) -> str:
    """Returns the name of a precision, from a torch dtype or a name such as "bfloat16".

    Raises:
        OptionError: [unknown-dtype] for anything else.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in PRECISIONS:
        raise OptionError(
            f"`dtype` must be one of {', '.join(PRECISIONS)}, got {dtype!r}. Choose one of these.",
            code="unknown-dtype",
        )
    return name


@public_call
def compile_options(
    dtype: torch.dtype | str,
    *,
    device: str | None = None,
    dynamic_quantization_group_size: int = 0,
    kv_cache: str | None = None,
) -> dict[str, str]:
    """Returns the OpenVINO properties for computing in a precision.

    Args:
        dtype: float32, bfloat16, float16; or int8, int4, which compute in float32 on compressed
            weights. An NPU computes every float type in float16. A processor without float16 or
            bfloat16 arithmetic computes these in float32.
        device: OpenVINO's name of the device (CPU, GPU, NPU); by default the current one.
        dynamic_quantization_group_size: activations are quantized to 8 bits in groups of this size
            before products with compressed weights: faster, less exact. 0 turns it off.
        kv_cache: precision of KV caches inside stateful models (f32, bf16, f16, u8); by default
            that of the computation.

    Raises:
        OptionError: [unknown-dtype].
    """
    serving = npu_runtime.device_info()
    return device_options(
        precision_name(dtype),
        device=device or serving.device,
        capabilities=serving.capabilities,
        dynamic_quantization_group_size=dynamic_quantization_group_size,
        kv_cache=kv_cache,
    )
