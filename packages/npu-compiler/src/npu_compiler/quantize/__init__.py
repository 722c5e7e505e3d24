"""Weight compression: integer weights with scales, in a form that plugins run without unpacking.

Choosing the precision in which activations are computed is npu_compiler.programs' work.
"""

from npu_compiler.quantize.compress import (
    CompressedWeight,
    CompressionReport,
    compress_weights,
)
from npu_compiler.quantize.tensors import compress_to_i4, quantize_tensor
from npu_compiler.quantize.weights import (
    GROUP_SIZES,
    MODES,
    QuantizedWeight,
    fitting_group,
    quantize_weight,
)

__all__ = [
    "GROUP_SIZES",
    "MODES",
    "CompressedWeight",
    "CompressionReport",
    "QuantizedWeight",
    "compress_to_i4",
    "compress_weights",
    "fitting_group",
    "quantize_tensor",
    "quantize_weight",
]
