"""The converters, one file per family of ops; importing this package fills the table."""

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
