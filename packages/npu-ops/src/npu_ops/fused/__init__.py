"""Fused operators: `torch.ops.npu.rms_norm` and others, one module each.

A module has the op's schema, formula with source, arguments, errors, `reference` (the same in plain
torch) and gradient. Kernels and fakes are in csrc/fused, the converters for torch.compile in
npu_compiler.lowering.converters.fused.
"""

from npu_ops.fused import (
    addmm_relu,
    conv_bn_relu,
    dynamic_quantize,
    fused_attention,
    linear_gelu,
    linear_relu,
    quantized_linear,
    rms_norm,
    rotary_embedding,
    swiglu,
)

__all__ = [
    "addmm_relu",
    "conv_bn_relu",
    "dynamic_quantize",
    "fused_attention",
    "linear_gelu",
    "linear_relu",
    "quantized_linear",
    "rms_norm",
    "rotary_embedding",
    "swiglu",
]
