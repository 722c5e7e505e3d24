"""InputClasses: decides when to verify a graph's programs again, by input values and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from npu_compiler.verification.comparison import on_host

__all__ = ["InputClasses"]

# A program is verified on its first inputs. Later inputs may reveal other errors: NaN and
# infinities, numbers beyond float16, and float16 values with overflowing products or squares.
_BOUNDS = {
    torch.float32: (65504.0, 1e18),
    torch.bfloat16: (65504.0, 1e18),
    torch.float16: (16.0, 256.0, 4096.0),
    torch.complex64: (65504.0, 1e18),
}
_INFINITE, _NAN = 98, 99

# The budget. Each of the first calls is examined; later ones so often that examining takes this
# share of the graph's run time.
_FIRST_CALLS = 16
_LOOKING_SHARE = 0.02
# Without a new class, programs are verified again once the graph has run for this multiple of a
# verification's time.
_AGAIN_AFTER = (25, 250, 2500)
# This many new classes are always verified, later ones within that share of the time.
_FREE_CLASSES = 16


class InputClasses:
    """The classes of inputs on which a graph's programs were verified, and the cost of examining.

    Attributes:
        left: calls until the next examined one; the graph counts it down.
    """

    def __init__(self, values: Mapping[int, Any]) -> None:
        """Takes the fake values of the examined inputs, by position."""
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
        """Records inputs on which the programs were verified."""
        self._seen.update(self._found(arguments))

    def is_due(self, arguments: Sequence[Any]) -> bool:
        """Whether to verify on these inputs: a class is new, or the interval has passed."""
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
        """Records the time of an examination and its run, and schedules the next."""
        calls = 0
        if self._looks > _FIRST_CALLS:
            calls = min(int(look_s / (_LOOKING_SHARE * max(run_s, 1e-7))), 100_000)
        self._run_s += run_s * (calls + 1)
        self._look_s += look_s
        self.left = calls

    def compared(self, seconds: float) -> None:
        """Records the time of a verification."""
        self._compare_s = max(self._compare_s, seconds)

    def _is_affordable(self) -> bool:
        return self._run_s > _AGAIN_AFTER[0] * self._compare_s * (self._classes - _FREE_CLASSES)

    def _found(self, arguments: Sequence[Any]) -> set[tuple[int, int]]:
        return {
            (position, _class_of(arguments[position], bounds))
            for position, bounds in self._bounds.items()
        }


def _class_of(tensor: torch.Tensor, bounds: Sequence[float]) -> int:
    """Returns the index of the range with the largest magnitude, or a class for NaN."""
    if not tensor.numel():
        return 0
    least, most = torch.aminmax(on_host(tensor))
    size = max(-float(least), float(most))
    if math.isnan(size) or math.isnan(float(least)):
        return _NAN
    if math.isinf(size):
        return _INFINITE
    return sum(size > bound for bound in bounds)
