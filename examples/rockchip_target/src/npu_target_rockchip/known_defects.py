"""Known refusals and wrong results of the compiler, as data: known_defects.toml."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import torch
from torch import fx

from npu_compiler.graph.nodes import op_name

__all__ = ["refusal"]

_FILE = Path(__file__).with_name("known_defects.toml")


@functools.cache
def known_defects() -> dict[str, str]:
    """Returns name of the op, with its overload -> why it always stays on the host."""
    content: dict[str, Any] = tomllib.loads(_FILE.read_text())
    always = [defect for defect in content["defects"] if defect["always"]]
    return {op: defect["reason"] for defect in always for op in defect["ops"]}


def refusal(node: fx.Node) -> str | None:
    """Returns why a call cannot be in a program, or None."""
    reason = known_defects().get(op_name(node.target))
    if reason is not None:
        return reason
    for source in (*node.all_input_nodes, node):
        value = source.meta.get("val")
        if isinstance(value, torch.Tensor) and not value.is_floating_point():
            return f"{value.dtype} values: the chip computes in float16, and checks no index"
    return None
