"""The converters, one file per family of ops; importing this package fills the table.

The table and its decorator live in npu_compiler.lowering.registry.
"""

from npu_compiler.lowering.converters import (  # noqa: F401
    attention,
    comparison,
    convolution,
    convolution_gradients,
    creation,
    elementwise,
    fourier,
    fused,
    grouped_matmul,
    indexing,
    matmul,
    normalization,
    padding,
    pooling,
    reductions,
    sparse_attention,
    symbolic,
    triangular,
    views,
)
