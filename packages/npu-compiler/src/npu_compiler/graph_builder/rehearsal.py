"""Calls that torch accepts without values and refuses with them, found when they are recorded.

Fake tensors know shapes and dtypes, but torch's kernels check more: that both factors of a product
have one dtype, and that indices lie inside. Such calls run once on zeros and on the graph's
constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["Rehearsal"]

# Tensors with more elements are not made for a rehearsal, nor kept for later ones.
_MOST_ELEMENTS = 1 << 24
# What torch's kernels raise.
_REFUSALS = (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError)


class Rehearsal:
    """What is known of a graph's values: its integer constants, and what follows from them."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._known: dict[int, torch.Tensor] = {}

    def learn(self, slot: int, value: torch.Tensor) -> None:
        """Takes a value of a slot in; floats index nothing and are left out."""
        if not value.dtype.is_floating_point and value.numel() <= _MOST_ELEMENTS:
            self._known[slot] = value

    def forget(self) -> None:
        """Drops all values: a call wrote, and others may be views of what it wrote to."""
        self._known.clear()

    def try_call(
        self, call: Callable[[Mapping[int, torch.Tensor]], Any], fakes: Mapping[int, torch.Tensor]
    ) -> Any:
        """Runs a call on real tensors where only that shows whether torch takes it.

        Args:
            call: makes it, on a value per slot.
            fakes: slot -> fake tensor, of the tensors it takes.

        Returns:
            The result where every value was known, else None.

        Raises:
            Exception: what torch raises whatever the values that are not known.
        """
        known = {slot for slot in fakes if slot in self._known}
        is_mixed = len({fake.dtype for fake in fakes.values()}) > 1
        is_large = sum(fake.numel() for fake in fakes.values()) > _MOST_ELEMENTS
        if is_large or not (known or is_mixed):
            return None
        try:
            result = self._run(call, fakes, 0)
        except _REFUSALS as failure:
            # A quotient refuses zeros, an index into one row refuses ones.
            try:
                result = self._run(call, fakes, 1)
            except _REFUSALS:
                raise failure from None
        return result if len(known) == len(fakes) else None

    def _run(
        self,
        call: Callable[[Mapping[int, torch.Tensor]], Any],
        fakes: Mapping[int, torch.Tensor],
        fill: int,
    ) -> Any:
        values = {slot: self._value(slot, fake, fill) for slot, fake in fakes.items()}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return call(values)

    def _value(self, slot: int, fake: torch.Tensor, fill: int) -> torch.Tensor:
        if slot in self._known:
            return self._known[slot].clone()
        return torch.full(tuple(fake.shape), fill, dtype=fake.dtype)
