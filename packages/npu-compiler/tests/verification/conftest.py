"""Converters that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openvino.opset15 as ops
import pytest
import torch

from npu_compiler.lowering import registry


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has an op's converter compute something else."""

    def planted(op: torch._ops.OpOverload, wrong: Callable[..., Any]) -> None:
        # Like one of this package's calls, with programs that are kept.
        wrong.__module__ = "npu_compiler.planted"
        monkeypatch.setitem(registry._TABLE, op, replace(registry._TABLE[op], function=wrong))

    return planted


@pytest.fixture
def wrong_sin(plant: Callable[..., None]) -> None:
    """Sine is cosine."""

    def convert(ctx: Any, self: Any) -> Any:
        return ops.cos(ctx.get(self))

    plant(torch.ops.aten.sin.default, convert)
