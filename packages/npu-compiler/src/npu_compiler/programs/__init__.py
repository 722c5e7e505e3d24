"""Programs on the device: compiler options, loading of OpenVINO models, and the cache on disk."""

from typing import TYPE_CHECKING

from npu_command.import_hooks import homes_of, lazy_names

if TYPE_CHECKING:
    from npu_compiler.programs.cache import ProgramCache, content_key
    from npu_compiler.programs.kept_files import CacheStatistics
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

_NAMES = {
    "cache": "ProgramCache content_key",
    "kept_files": "CacheStatistics",
    "load": "load_model load_tolerant",
    "precision": "compile_options precision_name",
}

# Late: exported models run without torch, which some of these import.
__getattr__ = lazy_names(__name__, homes_of(_NAMES))
