"""Comparison of results with a reference, and errors for wrong ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from npu_compiler.errors import WrongResultError, WrongResultWarning
from npu_compiler.verification.result import Verdict
from npu_runtime.npu import as_cpu

__all__ = ["ROUNDING", "Difference", "WrongResults", "compare"]

# Two stages. A result within a small share of its row's largest value is right. Otherwise torch
# computes again with a rounding error on every value, which shows how the graph amplifies rounding.
# The program's error is compared with that.

# One rounding in each precision. Twice float32's unit, because vectorized exponentials and their
# like are off by two units in the last place (OpenVINO 2026.4.1's CPU plugin).
ROUNDING = {"float32": 2.0**-22, "bfloat16": 2.0**-8, "float16": 2.0**-10}
# The first stage, as shares of the largest value in a row: products of 1,000 terms pass it.
_SHARE = {"float32": 1e-5, "bfloat16": 2.0**-6, "float16": 2.0**-8}
# Allowed error, in multiples of rounding's effect on torch's result.
_SPREADS = 12.0
# Allowed results flipped by rounding (comparisons, positions), besides the observed ones.
_FLIPS = 3
_SHORT_ROW = 64
_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True)
class Difference:
    """The difference of one result from torch's."""

    output: int  # which of the results, from 0
    problem: str  # as text, such as "off by 0.28"
    # The largest difference by the largest value of torch's result; infinite if NaN or an infinity
    # is in the wrong place, or dtype or shape differ.
    size: float
    count: int = 0  # elements that differ by more than rounding
    elements: int = 0  # of the result
    index: tuple[int, ...] = ()  # of the worst element
    # found, expected: its two values
    found: Any = None
    expected: Any = None

    def __str__(self) -> str:
        where = f" at {list(self.index)}" if self.index else ""
        values = "" if self.found is None else f": {self.found} instead of {self.expected}{where}"
        many = f", {self.count} of {self.elements} elements" if self.elements > 1 else ""
        return f"result {self.output} {self.problem}{many}{values}"


def compare(
    found: Sequence[Any],
    expected: Sequence[Any],
    *,
    precision: str,
    noisy: Callable[[], Iterable[Sequence[Any]]] | None = None,
    drops_nan: bool = False,
) -> Difference | None:
    """Returns how results differ from torch's by more than rounding, or None.

    Args:
        found: tensors on any device; other values are skipped.
        expected: torch's, in the same order.
        precision: of the computation of `found`: float32, bfloat16 or float16. A result of a
            narrower dtype is compared in that dtype's precision.
        noisy: computes torch's results again, several times, with rounding errors of that precision
            on all values. Called only if the first stage fails, and read until the samples suffice;
            without it a graph that amplifies rounding counts as different.
        drops_nan: whether elements that are NaN in torch's result may be anything.

    Returns:
        The first result that differs, with its worst element.
    """
    suspects: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    for index, (left, right) in enumerate(zip(found, expected, strict=True)):
        if not isinstance(right, torch.Tensor):
            continue
        if not isinstance(left, torch.Tensor) or left.shape != right.shape:
            shape = tuple(left.shape) if isinstance(left, torch.Tensor) else type(left).__name__
            problem = f"has the shape {shape}, torch's has {tuple(right.shape)}"
            return Difference(index, problem, float("inf"))
        if left.dtype != right.dtype:
            problem = f"has the dtype {left.dtype}, torch's has {right.dtype}"
            return Difference(index, problem, float("inf"))
        a, b = on_host(left), on_host(right)
        if bool(_beyond(a, b, _share(b, precision), drops_nan=drops_nan).any()):
            suspects.append((index, a, b))
    if not suspects:
        return None
    differences = [_judge(*one, [], precision, drops_nan=drops_nan) for one in suspects]
    samples: list[list[Any]] = []
    for results in () if noisy is None else noisy():
        samples.append([*results])
        differences = []
        for index, a, b in suspects:
            others = [on_host(sample[index]) for sample in samples]
            differences.append(_judge(index, a, b, others, precision, drops_nan=drops_nan))
        if not any(differences):
            break
    return next(filter(None, differences), None)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a host tensor of the same values, without gradients; complex ones as pairs."""
    tensor = tensor.detach()
    if tensor.device.type == "npu":
        tensor = as_cpu(tensor)
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _judge(
    index: int,
    a: torch.Tensor,
    b: torch.Tensor,
    others: list[torch.Tensor],
    precision: str,
    *,
    drops_nan: bool,
) -> Difference | None:
    """Runs the second stage for one result."""
    if not b.is_floating_point():
        wrong = a != b
        turned = max((int((other != b).sum()) for other in others), default=0)
        if int(wrong.sum()) <= (_FLIPS * turned if turned else 0):
            return None
        return _described(index, a, b, wrong)
    allowed = _share(b, precision)
    wrong = _beyond(a, b, allowed, drops_nan=drops_nan)
    if others:
        deviations = torch.stack([(_wide(other) - _wide(b)).abs() for other in others])
        unstable = ~deviations.isfinite().all(0) & ~_same_kind(others, b)
        # In double: squares of large float32 numbers are infinite, and would allow anything.
        deviations = deviations.nan_to_num(0.0, 0.0, 0.0).double()
        own = deviations.amax(0)
        row = deviations.square().mean(0)
        row = row.mean(_row_axes(b), keepdim=True) if row.dim() else row
        allowed = torch.maximum(allowed * 0.1, _SPREADS * (own + row.sqrt()))
        wrong = _beyond(a, b, allowed, drops_nan=drops_nan) & ~unstable
    return _described(index, a, b, wrong) if bool(wrong.any()) else None


def _row_axes(b: torch.Tensor) -> tuple[int, ...]:
    """Returns the axes over which rounding is averaged: more than one if a row is short.

    A line of a small image has too few elements, and a pooled image has lines of one element.
    """
    count, size = 1, int(b.shape[-1])
    while size < _SHORT_ROW and count < b.dim() - 1:
        count += 1
        size *= int(b.shape[-count])
    return tuple(range(-count, 0))


def _same_kind(others: list[torch.Tensor], b: torch.Tensor) -> torch.Tensor:
    """Returns a mask of elements that rounding keeps NaN, the same infinity, or finite."""
    same = torch.ones_like(b, dtype=torch.bool)
    for other in others:
        is_same_number = other.isfinite() & b.isfinite()
        same &= is_same_number | (other == b) | (other.isnan() & b.isnan())
    return same


def _share(b: torch.Tensor, precision: str) -> torch.Tensor:
    """Returns the first stage's tolerance per element; with one dim less if rows share it."""
    if not b.is_floating_point():
        return torch.zeros(())
    coarse = _DTYPES.get(b.dtype, precision)
    share = max(_SHARE[coarse], _SHARE.get(precision, 0.0))
    tiny = float(torch.finfo(getattr(torch, coarse)).tiny)
    size = _wide(b).abs().nan_to_num(0.0, 0.0, 0.0)
    if size.dim() and size.numel():
        size = size.amax(-1, keepdim=True)
    return size * share + tiny


def _beyond(
    a: torch.Tensor, b: torch.Tensor, allowed: torch.Tensor, *, drops_nan: bool
) -> torch.Tensor:
    if not b.is_floating_point():
        return a != b
    # Infinities must be equal, whatever the tolerance.
    near = ((_wide(a) - _wide(b)).abs() <= allowed) & a.isfinite() & b.isfinite()
    right = near | (a == b) | (a.isnan() & b.isnan())
    if drops_nan:
        right |= b.isnan()
    return ~right


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _described(index: int, a: torch.Tensor, b: torch.Tensor, wrong: torch.Tensor) -> Difference:
    gap = (a.double() - b.double()).abs()
    # A misplaced NaN or infinity is worse than any finite error.
    badness = torch.where(wrong, gap.nan_to_num(torch.inf, torch.inf), -1.0).flatten()
    worst = int(badness.argmax())
    place = torch.unravel_index(torch.tensor(worst), a.shape) if a.dim() else ()
    sizes = b.double().abs()
    largest = float(sizes[sizes.isfinite()].max()) if bool(sizes.isfinite().any()) else 0.0
    by = float(badness[worst])
    one, other = a.flatten()[worst].item(), b.flatten()[worst].item()
    problem = f"is off by {by:.3g}" if by < float("inf") else "has NaN or infinity elsewhere"
    return Difference(
        output=index,
        problem=problem,
        size=by / largest if largest and by < float("inf") else float("inf"),
        count=int(wrong.sum()),
        elements=a.numel(),
        index=tuple(int(axis) for axis in place),
        found=one,
        expected=other,
    )


_ADVICE = (
    "Please report it, with NPU_COMPILE_DEBUG set to a directory; CompilerConfig(verify=...) "
    "determines when programs are compared"
)


class WrongResults:
    """The differences found in one graph."""

    def __init__(
        self,
        graph: str,
        verdicts: Mapping[str, Verdict],
        *,
        difference: Difference | None,
        is_unsteady: bool,
        replaceable: frozenset[str] = frozenset(),
    ) -> None:
        """Takes the results of a trial.

        Verdicts are by program name; `difference` is of the whole graph although its programs are
        right, or None. Programs that are `replaceable` can be made for OpenVINO instead.
        """
        self._replaceable = replaceable
        self._graph = graph
        self._verdicts = verdicts
        self._difference = difference
        self._is_unsteady = is_unsteady

    @property
    def wrong(self) -> tuple[str, ...]:
        """Programs that are wrong despite all known workarounds."""
        return tuple(name for name, one in self._verdicts.items() if one.status == "wrong")

    def tell(self, *, is_strict: bool) -> None:
        """Warns of each; under strict, raises [wrong-result] if calls would run eagerly."""
        for name, verdict in self._verdicts.items():
            if verdict.status in ("mended", "unsteady"):
                self._warn(f"{name}: its program {verdict}")
            elif verdict.status == "wrong" and name in self._replaceable:
                self._warn(
                    f"{name}: its program of kernels {verdict}. OpenVINO's takes its place from "
                    "now on"
                )
            elif verdict.status == "wrong":
                self._refuse(f"{name}: its program {verdict}", is_strict=is_strict)
        if self._difference is not None:
            text = f"{self._graph}: the compiled graph differed from torch: {self._difference}"
            if self._is_unsteady:
                self._warn(f"{text}; right when it was run again")
            else:
                self._refuse(text, is_strict=is_strict)

    def _refuse(self, text: str, *, is_strict: bool) -> None:
        if is_strict:
            raise WrongResultError(
                f"{text}. Compile without strict, so that wrong parts run eagerly. {_ADVICE}.",
                code="wrong-result",
            )
        self._warn(f"{text}. It runs eagerly from now on")

    def _warn(self, text: str) -> None:
        warnings.warn(f"{text}. {_ADVICE}.", WrongResultWarning, stacklevel=2)
