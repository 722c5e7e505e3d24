"""Checkpoint folders with one or a few weights, in the formats of quantization libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from npu_llm.checkpoint.file_headers import read_folder_headers
from npu_llm.checkpoint.quantized.encoded import IntegerWeight
from npu_llm.checkpoint.quantized.scheme import find_scheme


class Folder:
    """A folder with safetensors and a quantization config."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def scheme(self, tensors, config, **beside):
        """Writes the tensors and finds how they are quantized."""
        save_file(
            {name: one.contiguous() for name, one in tensors.items()},
            self.path / "model.safetensors",
        )
        for name, text in beside.items():
            (self.path / f"{name}.json").write_text(json.dumps(text))
        about = {"model_type": "llama"}
        if config is not None:
            about["quantization_config"] = config
        return find_scheme(self.path, about, read_folder_headers(self.path))

    def decoded(self, tensors, config, name="a.weight"):
        """Returns a weight's values, and its integers if it has some."""
        scheme = self.scheme(tensors, config)
        weight = scheme.weights[name]
        found = weight.decode(lambda role: scheme.files.read(weight.parts[role]))
        assert (weight.bits == 0) == (not isinstance(found, IntegerWeight)) or weight.why_floats
        values = found if isinstance(found, torch.Tensor) else found.floats()
        assert values.shape == (weight.shape or values.shape)
        return values, found if isinstance(found, IntegerWeight) else None


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
def draw():
    """draw(low, high, shape): integers, the same each time."""
    generator = torch.Generator().manual_seed(0)

    def drawn(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    return drawn


def as_words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs the last axis into int32, as one integer of all bits a row: slow, and plainly right."""
    rows = []
    for row in values.reshape(-1, values.shape[-1]).tolist():
        whole = sum(int(value) << (bits * place) for place, value in enumerate(row))
        count = -(-len(row) * bits // 32)
        words = [(whole >> (32 * place)) & 0xFFFFFFFF for place in range(count)]
        rows.append([word - 2**32 if word >= 2**31 else word for word in words])
    return torch.tensor(rows, dtype=torch.int32).reshape(*values.shape[:-1], -1)
