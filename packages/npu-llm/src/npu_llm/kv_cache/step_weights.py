"""Weights as inputs of static programs: one copy shared by the programs of all sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors import safe_open

from npu_llm.kv_cache.static_layout import EmbeddingTable, StaticLayout

__all__ = ["HOST_MODEL", "StepWeights", "load_step_weights"]

HOST_MODEL = "host.xml"  # next to a program, its host part

# Alignment of tensors in memory: an NPU plugin imports whole pages.
_ALIGNMENT = 4096


@dataclass(frozen=True)
class StepWeights:
    """Inputs of programs besides tokens, masks and caches; empty by default.

    Attributes:
        ports: tensors by the programs' inputs. They are pinned, so that a device imports them once
            and reads them in place.
        tables: embeddings by the programs' inputs for their rows.
        tensors: the tables' rows and scales.
        dtype: dtype of the rows at the inputs.
        host: computes further inputs of one program from its positions and masks; None if there are
            none.
    """

    ports: Mapping[str, torch.Tensor] = field(default_factory=dict)
    tables: Mapping[str, EmbeddingTable] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    host: Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None

    def of_program(self, folder: Path) -> StepWeights:
        """Returns a copy with the host part of the program in a folder."""
        path = folder / HOST_MODEL
        if not path.is_file():
            return self
        from npu_llm.kv_cache.host_inputs import HostInputs  # imported late: loads OpenVINO

        return replace(self, host=HostInputs(path))

    def inputs(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns inputs of a program.

        Args:
            values: its other inputs except the caches; if it has tables and no host part, only the
                tokens, (1, tokens) int64.
        """
        found = dict(self.ports) | (self.host(values) if self.host is not None else {})
        for port, table in self.tables.items():
            tokens = values["input_ids"]
            rows = self.tensors[table.rows][tokens]
            scale = self.tensors.get(f"{table.rows}.scale")
            if scale is not None:
                rows = rows.float() * scale[tokens][..., None]
            found[port] = rows.to(self.dtype)
        return found


def load_step_weights(path: Path, layout: StaticLayout) -> StepWeights:
    """Reads the weights of a model's static programs.

    Args:
        path: the weights file; if it is missing, the programs have their weights as constants.
        layout: layout of the programs.
    """
    if not path.is_file():
        return StepWeights()
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith("weight.")]  # noqa: SIM118
        ports = {name for name in names if not name.endswith(".scale")}
        sizes = {name: file.get_slice(name).get_shape() for name in sorted(ports)}
        places, total = {}, 0
        for name, shape in sizes.items():
            places[name] = total
            total += -(-math.prod(shape) // _ALIGNMENT) * _ALIGNMENT
        memory = torch.empty(total, dtype=torch.uint8, pin_memory=True)
        tensors = {}
        for name in file.keys():  # noqa: SIM118
            stored = file.get_tensor(name)
            if name in places:
                part = memory[places[name] : places[name] + stored.nbytes]
                tensors[name] = part.view(stored.dtype).view(stored.shape).copy_(stored)
            else:
                tensors[name] = stored
    return StepWeights(
        {name: tensors[name] for name in sizes}, layout.tables, tensors, layout.torch_dtype
    )
