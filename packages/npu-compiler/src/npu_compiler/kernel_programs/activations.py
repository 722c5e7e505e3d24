"""Activations: known calls, and others that are recognized by their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from npu_ops.kernel_programs.program import Activation
from npu_ops.kernel_programs.reference import ACTIVATIONS as FORMULAS

__all__ = ["ACTIVATIONS", "find_activation"]

_aten = torch.ops.aten


def _gelu(node: fx.Node) -> Activation | None:
    kind = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none")
    return {"none": "gelu", "tanh": "gelu_tanh"}.get(str(kind))  # type: ignore[return-value]


ACTIVATIONS: dict[Any, Callable[[fx.Node], Activation | None]] = {
    _aten.relu.default: lambda node: "relu",
    _aten.gelu.default: _gelu,
    _aten.silu.default: lambda node: "silu",
    _aten.sigmoid.default: lambda node: "sigmoid",
    _aten.tanh.default: lambda node: "tanh",
}


def find_activation(compute: Callable[[torch.Tensor], torch.Tensor]) -> Activation | None:
    """Returns the activation that a function of single numbers is; None if it is none."""
    x = torch.cat([torch.linspace(-12, 12, 997), torch.tensor([-60.0, -1e-4, 0.0, 1e-4, 60.0])])
    found = compute(x)
    for name, formula in FORMULAS.items():
        if torch.allclose(found, formula(x), atol=2e-6, rtol=2e-6):
            return name
    return None
