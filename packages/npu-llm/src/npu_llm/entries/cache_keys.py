"""What an entry of the compile cache depends on, and by that its name; known without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

from npu_llm.checkpoint.source import ModelSource
from npu_llm.choices import PipelineName
from npu_llm.config import read_settings
from npu_llm.entries.entry import CompileCache, Entry, make_key
from npu_llm.precision import Precision, compile_options
from npu_runtime.info import device_info

__all__ = ["dependencies", "entry_key", "find_entry", "surroundings"]


def find_entry(
    source: ModelSource, precisions: Iterable[Precision], pipeline: PipelineName
) -> Entry | None:
    """Returns the entry that a model has in the compile cache of the settings; None for none.

    Args:
        source: the model's files.
        precisions: those that it may be in; the first with an entry counts.
        pipeline: that it is for.
    """
    cache, here = CompileCache(read_settings().cache_dir), surroundings()
    keys = (entry_key(source, precision, pipeline, here) for precision in precisions)
    return next((entry for key in keys if (entry := cache.find(key)) is not None), None)


def surroundings() -> dict[str, Any]:
    """Returns what a compiled form depends on besides the program: device, driver, versions."""
    device = device_info()
    packages = (
        "npu-llm", "npu-compiler", "npu-ops", "npu-runtime", "openvino", "torch", "transformers",
    )  # fmt: skip
    return {
        "device": [device.device, device.full_name, device.driver_version],
        "versions": {package: metadata.version(package) for package in packages},
    }


def entry_key(
    source: ModelSource,
    precision: Precision,
    pipeline: PipelineName,
    here: Mapping[str, Any],
    adapted_modules: Sequence[str] = (),
    *,
    is_for_npus: bool = False,
) -> str:
    """Returns the key of an entry in the compile cache."""
    parts = {**dependencies(source, precision, here), "pipeline": pipeline}
    if is_for_npus:
        parts["device_options"] = compile_options(precision, device="NPU")
    if adapted_modules:
        parts["adapted_modules"] = list(adapted_modules)
    return make_key(f"{source.name}-{precision.name}-{pipeline}", parts)


def dependencies(
    source: ModelSource, precision: Precision, here: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns everything that an entry depends on."""
    return {
        "path": str(source.path.resolve()),
        "files": source.identity(),
        "precision": precision.name,
        "options": compile_options(precision),
        **here,
    }
