"""Quantization: integer weights and activations in forms that plugins run, and what they cost."""

from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "GROUP_SIZES": "weights",
    "MODES": "weights",
    "ROUNDINGS": "weights",
    "QuantizedWeight": "weights",
    "fitting_group": "weights",
    "quantize_weight": "weights",
    "CompressedWeight": "compress",
    "CompressionReport": "compress",
    "compress_weights": "compress",
    "QualityReport": "quality",
    "call_arguments": "quality",
    "compare_outputs": "quality",
    "compare_perplexity": "quality",
    "perplexity": "quality",
    "compress_to_i4": "weights",
    "quantize_tensor": "weights",
    "compress_weights_by_data": "calibrated",
    "quantize_activations": "calibrated",
}


def __getattr__(name: str) -> Any:
    # Late: options name the modes, and OpenVINO's Python package takes a tenth of a second.
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
