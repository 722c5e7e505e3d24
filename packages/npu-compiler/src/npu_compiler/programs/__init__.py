"""From OpenVINO models to programs on the device: options, loading, and the cache on disk."""

from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "CacheStatistics": "kept_files",
    "ProgramCache": "cache",
    "compile_options": "precision",
    "content_key": "cache",
    "load_model": "load",
    "load_tolerant": "load",
    "precision_name": "precision",
}


def __getattr__(name: str) -> Any:
    # Late: exported models run without torch, which some of these import.
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
