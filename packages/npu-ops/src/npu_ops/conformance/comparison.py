"""One call on both devices: copies of its arguments, its result or error, and their comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

__all__ = [
    "copied",
    "difference",
    "gradients",
    "is_on_npu",
    "on_cpu",
    "on_npu",
    "outcome",
    "placement",
]

_SEED = 7


def on_npu(value: Any) -> Any:
    """A pytree's copy on npu, with the strides of the originals; "cpu" becomes "npu"."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            there = leaf.detach().to("npu")
            if leaf.layout is torch.strided and there.stride() != leaf.stride():
                there = torch.empty_strided(
                    leaf.shape, leaf.stride(), dtype=leaf.dtype, device="npu"
                ).copy_(leaf.detach())
            return there.requires_grad_(leaf.requires_grad)
        return "npu" if leaf in ("cpu", torch.device("cpu")) else leaf

    return tree_map(move, value)


def copied(value: Any) -> Any:
    """A pytree's copy where it is; tensors are leaves of autograd."""
    return tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad),
        value,
    )


def on_cpu(value: Any) -> Any:
    """A pytree with detached tensors, on the CPU."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), value)


def is_on_npu(leaf: Any) -> bool:
    """Whether an argument asks for the device: a tensor on it, or its name."""
    return leaf == "npu" if isinstance(leaf, str) else bool(getattr(leaf, "is_npu", False))


def outcome(
    call: Callable[..., Any], arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]
) -> Any:
    """What a call gives: its result, or the class of its error."""
    torch.manual_seed(_SEED)
    try:
        return call(arguments[0], *arguments[1], **arguments[2])
    except Exception as error:  # noqa: BLE001  # the class is compared
        return type(error)


def gradients(arguments: Any, results: Any) -> Any:
    """Gradients of all strided results for ones, or the class of the error; None without any."""
    inputs = [leaf for leaf in tree_leaves(arguments) if getattr(leaf, "requires_grad", False)]
    outputs = [
        leaf
        for leaf in tree_leaves(results)
        if getattr(leaf, "requires_grad", False) and leaf.layout is torch.strided
    ]
    if not inputs or not outputs:
        return None
    seeds = [torch.ones_like(output) for output in outputs]
    try:
        return torch.autograd.grad(outputs, inputs, seeds, allow_unused=True)
    except Exception as error:  # noqa: BLE001  # the class is compared
        return type(error)


def difference(got: Any, expected: Any) -> str | None:
    """None when two outcomes are the same, up to the device and dtype's usual tolerance."""
    if isinstance(expected, type) or isinstance(got, type):
        if got is expected:
            return None
        return f"expected {_named(expected)}, got {_named(got)}"
    try:
        torch.testing.assert_close(on_cpu(got), on_cpu(expected), equal_nan=True)
    except (AssertionError, TypeError) as error:
        return str(error)
    return None


def placement(arguments: Any, results: Any) -> str | None:
    """None when all results are on npu, or nothing asked for it."""
    if not any(is_on_npu(leaf) for leaf in tree_leaves(arguments)):
        return None
    astray = {
        str(leaf.device)
        for leaf in tree_leaves(results)
        if isinstance(leaf, torch.Tensor) and not is_on_npu(leaf)
    }
    return f"a result is on {', '.join(sorted(astray))}" if astray else None


def _named(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else f"a result ({type(value).__name__})"
