"""Fixtures: compile with buckets, with NaN in the padding, and compare with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from npu_compiler.buckets import graph

# The first is no other size of the tests' tensors: torch takes equal sizes for one.
LENGTHS = (11, 13, 9, 5, 7, 19)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN instead of zeros after float inputs, to detect any that reach a true value."""
    plain = graph._pad

    def pad(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        made = plain(tensor, sizes)
        if made is tensor or not tensor.dtype.is_floating_point:
            return made
        poisoned = torch.full_like(made, float("nan"))
        part = poisoned
        for axis, size in enumerate(tensor.shape):
            part = part.narrow(axis, 0, size)
        part.copy_(tensor.detach())
        return poisoned

    monkeypatch.setattr("npu_compiler.buckets.graph._pad", pad)


@pytest.fixture
def bucketed(compiled: Any, close: Any) -> Callable[..., Any]:
    """Runs a function at several lengths, compiled and eager; returns the records."""

    def check(
        function: Callable[..., Any],
        inputs: Callable[[int], tuple[Any, ...]],
        *,
        lengths: Sequence[int] = LENGTHS,
        tolerance: float = 2e-5,
        **options: Any,
    ) -> Any:
        fast = compiled(function, options={"buckets": "powers of two", **options})
        with torch.no_grad():
            for length in lengths:
                given = inputs(length)
                for tensor in given if length == lengths[0] else ():
                    sizes = (length, 2 * length, length + 30)
                    varying = [dim for dim, size in enumerate(tensor.shape) if size in sizes]
                    torch._dynamo.maybe_mark_dynamic(tensor, varying)
                result, expected = fast(*given), function(*given)
                close(result, expected, tolerance)
        return fast

    return check
