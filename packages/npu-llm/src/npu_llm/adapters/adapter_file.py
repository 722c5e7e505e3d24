"""Reads a LoRA adapter that PEFT saved: low-rank changes of a model's linear layers.

A layer's change is scale * B A for A (rank, inputs) and B (outputs, rank); Hu et al., "LoRA:
Low-Rank Adaptation of Large Language Models" (2021). The scale is alpha / rank, or alpha /
sqrt(rank) for rsLoRA (Kalajdzievski, 2023).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from npu_llm.errors import ModelError

__all__ = ["AdapterFile", "LowRank", "read_adapter"]

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_KEY = re.compile(
    r"(?P<module>.+)\.(?P<kind>lora_(?:A|B|embedding_A|embedding_B|magnitude_vector))"
    r"(?:\.\w+)?$"
)


@dataclass(frozen=True)
class LowRank:
    """The change of one layer.

    Attributes:
        first: A, (rank, inputs) float32; of an embedding, (rank, rows).
        second: B, (outputs, rank) float32.
        scale: what their product is multiplied by.
        magnitude: DoRA's length of each output (outputs,) float32; None without it.
        is_embedding: whether it changes an embedding, whose weight is (rows, outputs).
    """

    first: torch.Tensor
    second: torch.Tensor
    scale: float
    magnitude: torch.Tensor | None = None
    is_embedding: bool = False

    def delta(self, scale: float) -> torch.Tensor:
        """Returns the change of a weight (outputs, inputs), or of an embedding (rows, outputs)."""
        product = (self.second @ self.first) * (self.scale * scale)
        return product.t() if self.is_embedding else product


@dataclass(frozen=True)
class AdapterFile:
    """An adapter on this machine.

    Attributes:
        path: its folder.
        layers: the changes, by the paths of the model's modules.
        replaced: whole weights and biases that take the place of the model's, by their names.
    """

    path: Path
    layers: Mapping[str, LowRank]
    replaced: Mapping[str, torch.Tensor]


def read_adapter(path: str | Path) -> AdapterFile:
    """Reads an adapter.

    Args:
        path: the folder that PEFT's save_pretrained wrote, or its adapter_model.safetensors.

    Raises:
        ModelError: [adapter-unreadable] if it is missing or damaged, [adapter-kind] if it is no
            LoRA.
    """
    given = Path(path).expanduser()
    folder = given.parent if given.suffix == ".safetensors" else given
    weights = given if given.suffix == ".safetensors" else folder / _WEIGHTS
    config = _config(folder)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(
            f"{folder}: must be a LoRA adapter; got {kind}. Merge it with PEFT, and load the "
            "merged model.",
            code="adapter-kind",
        )
    found, replaced = _parts(weights)
    layers = {}
    for module, parts in found.items():
        is_embedding = "lora_embedding_A" in parts
        names = ("lora_embedding_A", "lora_embedding_B") if is_embedding else ("lora_A", "lora_B")
        if not set(names) <= parts.keys() or parts[names[0]].dim() != 2:
            raise _unreadable(weights, f"{module} has no pair of matrices A and B")
        first, second = (parts[name].float() for name in names)
        if first.shape[0] != second.shape[1]:
            raise _unreadable(weights, f"A and B of {module} have other ranks")
        scale = _scale(config, module, first.shape[0])
        magnitude = parts.get("lora_magnitude_vector")
        layers[module] = LowRank(
            first, second, scale, None if magnitude is None else magnitude.float(), is_embedding
        )
    return AdapterFile(folder, layers, replaced)


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / _CONFIG).read_text())
    except (OSError, ValueError) as failure:
        raise _unreadable(folder / _CONFIG, str(failure)) from failure
    if not isinstance(found, dict):
        raise _unreadable(folder / _CONFIG, f"a {type(found).__name__}")
    return found


def _parts(path: Path) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    found: dict[str, dict[str, torch.Tensor]] = {}
    replaced: dict[str, torch.Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            for key in sorted(file.keys()):
                name = key.removeprefix(_PREFIX)
                match = _KEY.fullmatch(name.removesuffix(".weight"))
                if match is None:
                    # Of a layer that is changed, PEFT may save the model's own weight as well.
                    if ".base_layer." not in name:
                        replaced[name] = file.get_tensor(key)
                    continue
                found.setdefault(match["module"], {})[match["kind"]] = file.get_tensor(key)
    except (OSError, SafetensorError) as failure:
        raise _unreadable(path, str(failure)) from failure
    if not found:
        raise _unreadable(path, "no matrices of LoRA")
    return found, replaced


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    alpha = config.get("lora_alpha")
    for pattern, other in (config.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module):
            alpha = other
            break
    alpha = rank if alpha is None else float(alpha)
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _unreadable(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"{path}: must be part of a LoRA adapter in safetensors; got: {reason.rstrip('.')}. Pass "
        "the folder that PEFT's save_pretrained wrote.",
        code="adapter-unreadable",
    )
