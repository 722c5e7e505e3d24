"""A case run once on one device: its results, its changed arguments, or the error's class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.op_conformance.cases.case import Case
from npu_ops.op_conformance.comparison import copy_to, on_cpu, seed_devices

__all__ = ["Evaluation", "evaluate"]

_SEED = 7
Adapt = Callable[[Case, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Evaluation:
    """What a call gave.

    Attributes:
        results: leaves of the result, or the gradients of the inputs; tensors are on the CPU.
        arguments: the tensors among the arguments after the call.
        error: class of the error that ended it; empty for none.
        problem: what is wrong whatever the values are, such as a result on another device.
    """

    results: list[Any] = field(default_factory=list)
    arguments: list[torch.Tensor] = field(default_factory=list)
    error: str = ""
    problem: str = ""


def evaluate(
    case: Case, check: str, device: str, *, adapt: Adapt | None = None, is_host: bool = False
) -> Evaluation:
    """Runs a case for one check.

    Args:
        case: what to call.
        check: of `CHECKS`.
        device: where the tensors are to be.
        adapt: what changes the arguments for the device before they are copied there.
        is_host: whether this is the side that a device is held against.
    """
    operator = case.operator
    given = case.make_arguments(requires_grad=check == "backward")
    if adapt is not None:
        given = adapt(case, given)
    placed = copy_to(given, device)
    positional, keywords = operator.bind(placed)
    call = operator.host_function(check) if is_host else operator.function(check)
    seed_devices(_SEED, device)
    try:
        result = call(*positional, **keywords)
        if check == "backward":
            return Evaluation(on_cpu(_gradients(placed, result)))
    except Exception as error:  # noqa: BLE001  # the class is compared
        return Evaluation(error=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    after = [leaf for leaf in tree_leaves(placed) if isinstance(leaf, torch.Tensor)]
    problem = _astray(after, result, device)
    if check == "in-place" and not problem and result is not positional[0]:
        problem = "the result is not the tensor that was written"
    return Evaluation(on_cpu(tree_leaves(result)), on_cpu(after), problem=problem)


def _gradients(arguments: Any, result: Any) -> list[torch.Tensor | None]:
    """Gradients of all inputs for seeded gradients of all outputs.

    Ones would not do: what sums to a constant, such as a softmax, has no gradient for them.
    """
    inputs = [leaf for leaf in tree_leaves(arguments) if getattr(leaf, "requires_grad", False)]
    outputs = [leaf for leaf in tree_leaves(result) if getattr(leaf, "requires_grad", False)]
    generator = torch.Generator().manual_seed(_SEED)
    seeds = [
        (torch.randint(-8, 9, output.shape, generator=generator).double() / 8).to(
            output.device, output.dtype
        )
        for output in outputs
    ]
    return list(torch.autograd.grad(outputs, inputs, seeds, allow_unused=True))


def _astray(arguments: list[torch.Tensor], result: Any, device: str) -> str:
    wanted = torch.device(device).type
    places = {
        leaf.device.type for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)
    } - {wanted}
    return f"a result is on {', '.join(sorted(places))}" if places and arguments else ""
