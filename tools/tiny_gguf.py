"""Writes tiny GGUF files of random weights from descriptions, the same on every machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quantize


def write_tiny(
    path: Path, described: dict[str, Any], kind: GGMLQuantizationType = GGMLQuantizationType.F32
) -> Path:
    """Writes a file of random weights.

    Args:
        path: the file.
        described: "architecture"; "metadata" by key: gguf's type names, outermost first, and a
            value; "tensors" by name: a shape, outermost first, and all values, or a mean and a
            deviation. See witness.json.
        kind: type of matrices with rows of whole blocks.

    Returns:
        The file.
    """
    writer = GGUFWriter(path, described["architecture"])
    for name, (types, value) in described["metadata"].items():
        kinds = [GGUFValueType[one] for one in types]
        writer.add_key_value(name, value, kinds[0], kinds[1] if len(kinds) > 1 else None)
    if "tokenizer.ggml.model" not in described["metadata"]:
        writer.add_string("tokenizer.ggml.model", "no_vocab")
    random = np.random.default_rng(0)
    for name, (shape, *distribution) in described["tensors"].items():
        if isinstance(distribution[0], list):
            values = np.array(distribution[0], np.float32)
        else:
            mean, deviation = distribution
            values = random.standard_normal(shape).astype(np.float32) * deviation + mean
            if name.endswith("ssm_a"):
                values = -np.abs(values) - 0.01
        values = values.astype(np.float32).reshape(shape)
        if kind is not GGMLQuantizationType.F32 and len(shape) > 1 and shape[-1] % 32 == 0:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    if f"{described['architecture']}.vocab_size" not in described["metadata"]:
        writer.add_vocab_size(described["tensors"]["token_embd.weight"][0][0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
