"""Checks that a config fully describes a GGUF file's model, as a checkpoint requires."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from npu_llm.checkpoint.fixed_ropes import fix_ropes
from npu_llm.errors import ModelError
from npu_llm.gguf.model import made_of

__all__ = ["check_config_suffices"]


def check_config_suffices(model: Any, path: Path, *, auto: Any) -> None:
    """Rejects a model that its config does not fully describe, as a checkpoint requires.

    Args:
        model: a model from load_gguf_model.
        path: its file.
        auto: transformers' auto class for the model's task.

    Raises:
        ModelError: [gguf-config] if a model built from the config alone would compute other
            results.
    """
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        config = type(model.config).from_pretrained(folder)
    plain = made_of(config, auto)
    fix_ropes(plain, is_long=True)
    differs = _first_difference(model, plain)
    if differs is not None:
        raise ModelError(
            f"`{path}` must be a model that transformers' config.json can describe, to be written "
            f"as a checkpoint, got another {differs}. Use the GGUF file with the adapter, or merge "
            "into the model's original checkpoint.",
            code="gguf-config",
        )


def _first_difference(model: nn.Module, other: nn.Module) -> str | None:
    """Returns the name of a parameter, buffer or number that differs between two models."""
    shapes, others = (
        {name: one.shape for name, one in m.named_parameters()} for m in (model, other)
    )
    if unlike := {name for name in shapes | others if shapes.get(name) != others.get(name)}:
        return min(unlike)
    kept = model.state_dict()
    buffers = dict(other.named_buffers())
    for name, buffer in model.named_buffers():
        if name in kept or name.endswith("original_inv_freq"):
            continue  # stored with the weights, or without effect here
        if not torch.allclose(buffer, buffers[name], rtol=1e-6, atol=0.0):
            return name
    for (module, one), two in zip(model.named_modules(), other.modules(), strict=True):
        if type(one) is not type(two):
            return str(module)
        for key, value in vars(one).items():
            if key in ("training", "rope_type") or not isinstance(value, (bool, int, float, str)):
                continue
            found = vars(two).get(key)
            if isinstance(value, float) and isinstance(found, float):
                is_same = math.isclose(value, found, rel_tol=1e-6)
            else:
                is_same = value == found
            if not is_same:
                return f"{module}.{key}"
    return None
