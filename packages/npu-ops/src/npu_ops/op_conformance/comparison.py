"""One call on both devices: copies of its arguments, its result or error, and their comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from npu_ops.config import read_settings
from npu_ops.tolerances import Tolerance, tolerance_of

__all__ = [
    "copy_to",
    "difference",
    "gradients",
    "is_on_npu",
    "is_rounding",
    "on_cpu",
    "outcome",
    "placement",
    "seed_devices",
]

_SEED = 7


def copy_to(value: Any, device: str) -> Any:
    """Copies a pytree to ``device``, as leaves of autograd; "cpu" in it becomes ``device``.

    Whole storages are copied, each once, to preserve sharing, overlaps and strides.
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
        original = tensor.untyped_storage()
        if original.data_ptr() not in storages or original.nbytes() == 0:
            copy = torch.UntypedStorage(original.nbytes(), device=device)  # type: ignore[no-untyped-call]
            storages[original.data_ptr()] = copy.copy_(original)
        return storages[original.data_ptr()]

    def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            return tensor.detach().clone().to(device)
        there = torch.empty(0, dtype=tensor.dtype, device=device).set_(
            storage_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()
        )
        if tensor.is_conj():
            there = there.conj()
        return torch._neg_view(there) if tensor.is_neg() else there

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_meta:
            return leaf  # on no device, unlike the others
        if isinstance(leaf, torch.Tensor):
            return copy_tensor(leaf).requires_grad_(leaf.requires_grad)
        return device if leaf in ("cpu", torch.device("cpu")) else leaf

    return tree_map(copy, value)


def on_cpu(value: Any) -> Any:
    """Detaches tensors and copies them to the CPU; meta tensors stay, nested ones become lists."""

    def bring(tensor: torch.Tensor) -> Any:
        if tensor.is_meta:
            return tensor.detach()
        host = tensor.detach().cpu()
        return list(host.unbind()) if host.is_nested else host

    return tree_map_only(torch.Tensor, bring, value)


def is_on_npu(leaf: Any) -> bool:
    """Whether an argument is a tensor on the device, or the device's name."""
    return leaf == "npu" if isinstance(leaf, str) else bool(getattr(leaf, "is_npu", False))


def outcome(
    call: Callable[..., Any], arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]
) -> Any:
    """Returns a call's result, or the class of its error."""
    seed_devices(_SEED)
    try:
        return call(arguments[0], *arguments[1], **arguments[2])
    except Exception as error:  # noqa: BLE001  # the class is compared
        return type(error)


def seed_devices(seed: int, device: str = "npu") -> None:
    """Seeds the CPU's generator and a device's.

    torch.manual_seed also formats a stack for each missing device type: 5 ms.
    """
    torch.default_generator.manual_seed(seed)
    if torch.device(device).type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def gradients(arguments: Any, results: Any) -> Any:
    """Returns gradients of all strided results for ones, or the error's class; None without any."""
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


def difference(got: Any, expected: Any, subject: str = "") -> str | None:
    """Returns None if two outcomes are equal up to the usual tolerance of device and dtype.

    With forced programs (`NPU_OPS_VARIANT=program`), uses the op's tolerance of tolerances.py.

    Args:
        got: the device's outcome.
        expected: the CPU's outcome.
        subject: the op's name in torch's database.
    """
    if got is expected:
        return None
    if isinstance(expected, type) or isinstance(got, type):
        return f"expected {_named(expected)}, got {_named(got)}"
    ours, theirs = on_cpu(got), on_cpu(expected)
    is_forced = bool(subject) and read_settings().variants == "program"
    allowed = tolerance_of(subject)
    most = 0.0 if is_forced and allowed.is_exact else None  # None for torch's default
    try:
        torch.testing.assert_close(ours, theirs, rtol=most, atol=most, equal_nan=True)
    except (AssertionError, TypeError) as error:
        return None if is_forced and is_rounding(ours, theirs, allowed) else str(error)
    return None


def is_rounding(got: Any, expected: Any, allowed: Tolerance) -> bool:
    """Whether results of one structure differ by at most the tolerance of an op's programs."""
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    return len(ours) == len(theirs) and all(
        _is_near(left, right, allowed.of(right.dtype))
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
        else left == right
        for left, right in zip(ours, theirs, strict=True)
    )


def _is_near(got: torch.Tensor, expected: torch.Tensor, share: float) -> bool:
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    if expected.numel() == 0:
        return True
    known = expected.isfinite()
    if not torch.equal(got[~known].nan_to_num(), expected[~known].nan_to_num()):
        return False
    scale = max(1.0, float(expected[known].double().abs().max())) if known.any() else 1.0
    apart = (got[known].double() - expected[known].double()).abs()
    return bool((apart <= share * scale).all())


def placement(arguments: Any, results: Any) -> str | None:
    """Returns None if all results are on npu, or no argument is."""
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
