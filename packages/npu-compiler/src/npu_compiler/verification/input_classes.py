"""InputClasses: when a graph's programs are compared again, by what its inputs hold and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from npu_compiler.verification.comparison import on_host

__all__ = ["InputClasses"]

# A program is compared on the first inputs that it gets. Others may show what those hide: NaN and
# infinities, numbers beyond float16, and float16 whose products or squares overflow.
_BOUNDS = {
    torch.float32: (65504.0, 1e18),
    torch.bfloat16: (65504.0, 1e18),
    torch.float16: (16.0, 256.0, 4096.0),
    torch.complex64: (65504.0, 1e18),
}
_INFINITE, _NAN = 98, 99

# The budget. The first calls are looked at each; later ones so often that looking takes this share
# of the time that the graph runs.
_FIRST_CALLS = 16
_LOOKING_SHARE = 0.02
# Without a new class, programs are compared again once the graph has run for so many times as long
# as a comparison takes.
_AGAIN_AFTER = (25, 250, 2500)
# New classes are compared in any case so often, and later within that share of the time.
_FREE_CLASSES = 16


class InputClasses:
    """Which classes of inputs a graph's programs were compared on, and what looking costs.

    Attributes:
        left: calls until the next one that is looked at; the graph counts it down.
    """

    def __init__(self, values: Mapping[int, Any]) -> None:
        """Takes the fake values of the inputs that are looked at, by position."""
        self._bounds = {
            position: _BOUNDS[value.dtype]
            for position, value in values.items()
            if isinstance(value, torch.Tensor) and value.dtype in _BOUNDS
        }
        self._seen: set[tuple[int, int]] = {(position, 0) for position in self._bounds}
        self._looks = self._classes = self._times_again = 0
        self._run_s = self._look_s = self._compare_s = 0.0
        self.left = 0

    def note(self, arguments: Sequence[Any]) -> None:
        """Takes note of inputs on which the programs were compared."""
        self._seen.update(self._found(arguments))

    def is_due(self, arguments: Sequence[Any]) -> bool:
        """Whether to compare on these inputs: a class is new, or it is time to."""
        self._looks += 1
        new = self._found(arguments) - self._seen
        if new and (self._classes < _FREE_CLASSES or self._is_affordable()):
            self._seen |= new
            self._classes += 1
            return True
        again = self._times_again
        if not self._compare_s or again >= len(_AGAIN_AFTER):
            return False
        is_time = self._run_s > _AGAIN_AFTER[again] * self._compare_s
        self._times_again += is_time
        return is_time

    def spent(self, *, look_s: float, run_s: float) -> None:
        """Takes note of what a look and the run after it took, and sets the next look."""
        calls = 0
        if self._looks > _FIRST_CALLS:
            calls = min(int(look_s / (_LOOKING_SHARE * max(run_s, 1e-7))), 100_000)
        self._run_s += run_s * (calls + 1)
        self._look_s += look_s
        self.left = calls

    def compared(self, seconds: float) -> None:
        """Takes note of what a comparison took."""
        self._compare_s = max(self._compare_s, seconds)

    def _is_affordable(self) -> bool:
        return self._run_s > _AGAIN_AFTER[0] * self._compare_s * (self._classes - _FREE_CLASSES)

    def _found(self, arguments: Sequence[Any]) -> set[tuple[int, int]]:
        return {
            (position, _class_of(arguments[position], bounds))
            for position, bounds in self._bounds.items()
        }


def _class_of(tensor: torch.Tensor, bounds: Sequence[float]) -> int:
    """Which of the ranges that end at the bounds holds the largest magnitude; or not a number."""
    if not tensor.numel():
        return 0
    least, most = torch.aminmax(on_host(tensor))
    size = max(-float(least), float(most))
    if math.isnan(size) or math.isnan(float(least)):
        return _NAN
    if math.isinf(size):
        return _INFINITE
    return sum(size > bound for bound in bounds)
