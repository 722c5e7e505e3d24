"""Error metrics of tensors: absolute and relative errors, outliers and their indices, ULPs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.testing._comparison import default_tolerances

from npu_runtime.public_calls import public_call

__all__ = ["Comparison", "Outlier", "compare_tensors", "mismatch"]


Number = bool | int | float | complex

_WORST = 5
# Integer dtypes of the same width, in which adjacent floats are adjacent integers.
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_EXACT = 2.0**62


@dataclass(frozen=True)
class Outlier:
    """An element beyond the tolerance.

    Attributes:
        index: its index in each dimension.
        actual: the actual value.
        expected: the expected value.
        absolute_error: `|actual - expected|`; NaN if either is NaN.
    """

    index: tuple[int, ...]
    actual: Number
    expected: Number
    absolute_error: float


@dataclass(frozen=True)
class Comparison:
    """A tensor compared with the expected one.

    Errors and ULP distances cover pairs of finite values, relative errors only those with a nonzero
    expected value.

    Attributes:
        path: its path in the structure, such as `[0]['logits']`; empty for a single tensor.
        passed: whether structure, shape, dtype and all values are as expected.
        problem: a mismatch other than of values, such as of shapes; None otherwise.
        shape: the expected shape; None if the structure differs.
        dtype: the expected dtype; None if the structure differs.
        rtol: the relative tolerance used.
        atol: the absolute tolerance used.
        element_count: number of compared elements.
        outlier_count: number of elements beyond the tolerance, including wrong NaN and infinity.
        max_absolute_error: the largest `|actual - expected|`.
        mean_absolute_error: its mean.
        max_relative_error: the largest `|actual - expected| / |expected|`.
        mean_relative_error: its mean.
        max_ulp: the largest distance in units in the last place; None unless both have the same
            float or complex dtype.
        mean_ulp: its mean.
        nan_mismatches: number of elements where exactly one is NaN; with `equal_nan=False`, where
            any is.
        inf_mismatches: number of elements where one is infinite and the other is not the same
            infinity.
        worst: the largest outliers, in descending order.
    """

    path: str
    passed: bool
    problem: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None
    rtol: float = 0.0
    atol: float = 0.0
    element_count: int = 0
    outlier_count: int = 0
    max_absolute_error: float = 0.0
    mean_absolute_error: float = 0.0
    max_relative_error: float = 0.0
    mean_relative_error: float = 0.0
    max_ulp: float | None = None
    mean_ulp: float | None = None
    nan_mismatches: int = 0
    inf_mismatches: int = 0
    worst: tuple[Outlier, ...] = ()

    @property
    def outlier_share(self) -> float:
        """Share of elements beyond the tolerance, from 0 to 1."""
        return self.outlier_count / self.element_count if self.element_count else 0.0

    def __str__(self) -> str:
        lines = [f"{self.path or 'result'}: {self._verdict()}"]
        if self.element_count:
            lines.append(
                f"  absolute error  max {self.max_absolute_error:.3g}, "
                f"mean {self.mean_absolute_error:.3g} (atol {self.atol:.3g})"
            )
            lines.append(
                f"  relative error  max {self.max_relative_error:.3g}, "
                f"mean {self.mean_relative_error:.3g} (rtol {self.rtol:.3g})"
            )
        if self.max_ulp is not None and self.mean_ulp is not None:
            lines.append(f"  ULP             max {self.max_ulp:.6g}, mean {self.mean_ulp:.3g}")
        if self.outlier_count:
            lines.append(
                f"  outliers        {self.outlier_count} of {self.element_count} "
                f"({self.outlier_share:.3%}); NaN {self.nan_mismatches}, "
                f"infinity {self.inf_mismatches}"
            )
        lines += [
            f"    {list(outlier.index)}: {outlier.actual} instead of {outlier.expected}"
            for outlier in self.worst
        ]
        return "\n".join(lines)

    def _verdict(self) -> str:
        kind = f" ({str(self.dtype).removeprefix('torch.')}{list(self.shape or ())})"
        verdict = "as expected" if self.passed else self.problem or "values differ"
        return verdict + (kind if self.dtype is not None else "")


def mismatch(path: str, problem: str) -> Comparison:
    """Returns the result for a part without a counterpart."""
    return Comparison(path, passed=False, problem=problem)


@public_call
def compare_tensors(
    path: str,
    actual: torch.Tensor,
    expected: torch.Tensor,
    *,
    tolerances: tuple[float | None, float | None],
    check_dtype: bool,
    equal_nan: bool,
) -> Comparison:
    """Compares two dense tensors on the CPU.

    Args:
        path: their path, for the report.
        actual: any shape and dtype.
        expected: any shape and dtype.
        tolerances: rtol and atol; None for the dtypes' defaults.
        check_dtype: whether different dtypes fail.
        equal_nan: whether two NaN are equal.
    """
    shape, dtype = tuple(expected.shape), expected.dtype
    problem: str | None = None
    if actual.shape != expected.shape:
        problem = f"expected shape {shape}, got {tuple(actual.shape)}"
        return Comparison(path, passed=False, problem=problem, shape=shape, dtype=dtype)
    if check_dtype and actual.dtype is not dtype:
        problem = f"expected {dtype}, got {actual.dtype}"
    usual = default_tolerances(actual.dtype, dtype)
    rtol, atol = (
        default if given is None else given
        for given, default in zip(tolerances, usual, strict=True)
    )
    got, wanted = actual.flatten(), expected.flatten()
    a, b = _wide(got), _wide(wanted)
    absolute, size = _absolute_error(got, wanted, (a - b).abs()), b.abs()
    nan, inf, pairs = _special(a, b, equal_nan=equal_nan)
    outliers = nan | inf | (pairs & (absolute > atol + rtol * size))
    relative = absolute[pairs & (size > 0)] / size[pairs & (size > 0)]
    ulp = _ulp_distance(got, wanted)
    count = int(outliers.sum())
    return Comparison(
        path,
        passed=problem is None and count == 0,
        problem=problem,
        shape=shape,
        dtype=dtype,
        rtol=rtol,
        atol=atol,
        element_count=got.numel(),
        outlier_count=count,
        max_absolute_error=_max(absolute[pairs]),
        mean_absolute_error=_mean(absolute[pairs]),
        max_relative_error=_max(relative),
        mean_relative_error=_mean(relative),
        max_ulp=None if ulp is None else _max(ulp[pairs]),
        mean_ulp=None if ulp is None else _mean(ulp[pairs]),
        nan_mismatches=int(nan.sum()),
        inf_mismatches=int(inf.sum()),
        worst=_worst(got, wanted, absolute - atol - rtol * size, outliers, shape),
    )


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Converts to float64 or complex128, which support all operators; rounds large integers."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _absolute_error(got: torch.Tensor, wanted: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """Computes the error in float64; exactly for nearby integers."""
    if any(tensor.is_floating_point() or tensor.is_complex() for tensor in (got, wanted)):
        return rounded
    # Two's complement subtraction is exact if the distance fits, also for 64-bit integers.
    exact = (got.to(torch.int64) - wanted.to(torch.int64)).to(torch.float64).abs()
    return torch.where(rounded < _EXACT, exact, rounded)


def _special(
    got: torch.Tensor, wanted: torch.Tensor, *, equal_nan: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns masks of wrong NaN, of wrong infinity, and of finite pairs."""
    nan = got.isnan() ^ wanted.isnan() if equal_nan else got.isnan() | wanted.isnan()
    either = got.isinf() | wanted.isinf()
    # A pair of NaN and infinity counts as NaN.
    inf = either & ~(got.isnan() | wanted.isnan()) & (got != wanted)
    finite = got.isfinite() & wanted.isfinite()
    return nan, inf, finite


def _ulp_distance(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor | None:
    """Returns the distance in ULPs; for complex numbers the larger one."""
    if got.dtype is not wanted.dtype:
        return None
    if got.is_complex():
        if got.dtype is torch.complex32 or got.numel() == 0:
            return None
        parts = _ulp_distance(torch.view_as_real(got), torch.view_as_real(wanted))
        return None if parts is None else parts.amax(-1)
    bits = _BITS.get(got.dtype)
    if bits is None:
        return None
    a, b = (_ordered(tensor, bits) for tensor in (got, wanted))
    far = (a.to(torch.float64) - b.to(torch.float64)).abs()
    return torch.where(far < _EXACT, (a - b).to(torch.float64).abs(), far)


def _ordered(tensor: torch.Tensor, bits: torch.dtype) -> torch.Tensor:
    """Maps floats to integers in the same order; -0.0 equals 0.0, neighbours differ by one."""
    pattern = tensor.contiguous().view(bits).to(torch.int64)
    return torch.where(pattern < 0, torch.iinfo(bits).min - pattern, pattern)


def _worst(
    got: torch.Tensor,
    wanted: torch.Tensor,
    excess: torch.Tensor,
    outliers: torch.Tensor,
    shape: tuple[int, ...],
) -> tuple[Outlier, ...]:
    places = outliers.nonzero().flatten()
    # Wrong NaN and infinity rank above any number.
    order = excess[places].nan_to_num(torch.inf).argsort(descending=True, stable=True)[:_WORST]
    found = []
    for place in places[order].tolist():
        index = torch.unravel_index(torch.tensor(place), shape) if shape else ()
        a, b = got[place].item(), wanted[place].item()
        found.append(Outlier(tuple(int(axis) for axis in index), a, b, _distance(a, b)))
    return tuple(found)


def _distance(a: Number, b: Number) -> float:
    return float(abs(a - b))


def _max(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _mean(values: torch.Tensor) -> float:
    return float(values.mean()) if values.numel() else 0.0
