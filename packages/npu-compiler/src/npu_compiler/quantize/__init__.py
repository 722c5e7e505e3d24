"""Quantization of weights and activations in forms that plugins run, and its loss of quality."""

from typing import TYPE_CHECKING

from npu_command.import_hooks import homes_of, lazy_names

if TYPE_CHECKING:
    from npu_compiler.quantize.calibrated import compress_weights_by_data, quantize_activations
    from npu_compiler.quantize.compress import (
        CompressedWeight,
        CompressionReport,
        compress_weights,
    )
    from npu_compiler.quantize.quality import (
        QualityReport,
        call_arguments,
        compare_outputs,
        compare_perplexity,
        perplexity,
    )
    from npu_compiler.quantize.weights import (
        GROUP_SIZES,
        MODES,
        ROUNDINGS,
        QuantizedWeight,
        compress_to_i4,
        fitting_group,
        quantize_tensor,
        quantize_weight,
    )

__all__ = [
    "GROUP_SIZES",
    "MODES",
    "ROUNDINGS",
    "CompressedWeight",
    "CompressionReport",
    "QualityReport",
    "QuantizedWeight",
    "call_arguments",
    "compare_outputs",
    "compare_perplexity",
    "compress_to_i4",
    "compress_weights",
    "compress_weights_by_data",
    "fitting_group",
    "perplexity",
    "quantize_activations",
    "quantize_tensor",
    "quantize_weight",
]

_NAMES = {
    "calibrated": "compress_weights_by_data quantize_activations",
    "compress": "CompressedWeight CompressionReport compress_weights",
    "quality": "QualityReport call_arguments compare_outputs compare_perplexity perplexity",
    "weights": "GROUP_SIZES MODES QuantizedWeight ROUNDINGS compress_to_i4 fitting_group "
    "quantize_tensor quantize_weight",
}

# Late imports: options need only the modes, and importing OpenVINO takes 0.1 s.
__getattr__ = lazy_names(__name__, homes_of(_NAMES))
