"""From OpenVINO models to programs on the device: options, loading, and the cache on disk."""

from npu_compiler.programs.cache import CacheStatistics, ProgramCache, content_key
from npu_compiler.programs.load import load_model, load_tolerant
from npu_compiler.programs.precision import compile_options, precision_name

__all__ = [
    "CacheStatistics",
    "ProgramCache",
    "compile_options",
    "content_key",
    "load_model",
    "load_tolerant",
    "precision_name",
]
