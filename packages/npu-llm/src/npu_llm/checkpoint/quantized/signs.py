"""Quantization markers of a checkpoint, read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_llm.checkpoint.file_headers import TensorSpec

__all__ = ["BESIDE", "INTEGERS", "described_in", "may_be_quantized"]

# Files next to config.json that describe quantization, and the default method.
BESIDE = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
    "quanto_qmap.json": "quanto",
}
# The format's names for dtypes that only quantized weights have.
INTEGERS = ("I8", "U8", "I16", "I32", "I64")


def described_in(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a config's quantization section; None without one."""
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        for name in ("quantization_config", "compression_config"):
            found = place.get(name)
            if isinstance(found, dict) and found:
                return found
    return None


def may_be_quantized(
    folder: Path, config: Mapping[str, Any], headers: Mapping[str, TensorSpec]
) -> bool:
    """Whether any marker indicates a quantized checkpoint."""
    return (
        described_in(config) is not None
        or any((folder / name).is_file() for name in BESIDE)
        or any(
            tensor.dtype.startswith("F8_") or tensor.dtype in INTEGERS
            for tensor in headers.values()
        )
    )
