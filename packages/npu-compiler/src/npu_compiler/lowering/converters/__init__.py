"""Converters, one file per family of ops; importing this package registers them."""

from npu_compiler.lowering.converters import (  # noqa: F401
    attention,
    convolution,
    creation,
    elementwise,
    fused,
    indexing,
    matmul,
    normalization,
    pooling,
    reductions,
    sparse_attention,
    views,
)
