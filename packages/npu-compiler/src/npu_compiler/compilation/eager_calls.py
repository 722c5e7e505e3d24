"""The calls of a plan that no program took: which they are, and what is said of them."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import fx

from npu_compiler.compilation.building import count_calls
from npu_compiler.compilation.partition import Plan
from npu_compiler.compilation.records import EagerNode
from npu_compiler.errors import LoweringError, WrongResultError
from npu_compiler.graph.calls import op_name
from npu_compiler.graph.origins import node_place, source_line
from npu_compiler.lowering.capability import HOST_DUTIES
from npu_compiler.verification.verdict import DIFFERED

__all__ = ["eager_calls", "eager_records", "refuse_eager"]


def eager_calls(plan: Plan) -> list[tuple[fx.Node, str]]:
    """Returns the calls that a program would have taken if it could, with the reasons."""
    return [
        (node, reason)
        for node, reason in plan.eager.items()
        if reason not in HOST_DUTIES and count_calls([node])
    ]


def eager_records(plan: Plan) -> tuple[EagerNode, ...]:
    """Returns the same for a graph's record."""
    return tuple(
        EagerNode(node.name, op_name(node.target), reason, source_line(node))
        for node, reason in eager_calls(plan)
    )


def refuse_eager(node: fx.Node, reason: str) -> NoReturn:
    """Says that a call must be in a program, and why it is not.

    Raises:
        WrongResultError: [wrong-result] its program's results differed from torch's.
        LoweringError: [no-converter], or [cannot-lower] for another reason.
    """
    call = f"{op_name(node.target)} ({node_place(node)})"
    shapes = [
        tuple(value.shape)
        for source in node.all_input_nodes
        if isinstance(value := source.meta.get("val"), torch.Tensor)
    ]
    if DIFFERED in reason:
        raise WrongResultError(
            f"{call} of inputs {shapes}: its program {reason}. "
            "Compile without strict, so that it runs eagerly.",
            code="wrong-result",
        )
    code = "no-converter" if reason.startswith("no converter") else "cannot-lower"
    raise LoweringError(
        f"Cannot lower {call} of inputs {shapes}: {reason}. "
        "Register a converter, or compile without strict so that it runs eagerly.",
        code,
        node.name,
        reason,
    )
