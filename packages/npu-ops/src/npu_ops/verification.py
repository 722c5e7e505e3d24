"""Verification of a result against the expected one: errors, outliers, ULP distance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from npu_ops.error_metrics import Comparison, compare_tensors, mismatch
from npu_ops.errors import OperatorInputError, VerificationError
from npu_runtime.public_calls import public_call

__all__ = ["VerificationReport", "verify_correctness"]

_SHOWN = 10


@dataclass(frozen=True)
class VerificationReport:
    """The result of `verify_correctness`; `str()` of it is a table.

    Attributes:
        comparisons: one entry for each tensor, in the order of `expected`.
    """

    comparisons: tuple[Comparison, ...]

    @property
    def passed(self) -> bool:
        """Whether every part has the expected structure, shape, dtype and values."""
        return all(comparison.passed for comparison in self.comparisons)

    @property
    def max_absolute_error(self) -> float:
        """The largest `|actual - expected|` among finite pairs of all tensors."""
        return max((part.max_absolute_error for part in self.comparisons), default=0.0)

    @property
    def mean_absolute_error(self) -> float:
        """The mean of `|actual - expected|` over all elements of all tensors."""
        return self._mean("mean_absolute_error")

    @property
    def max_relative_error(self) -> float:
        """The largest `|actual - expected| / |expected|` for nonzero `expected`."""
        return max((part.max_relative_error for part in self.comparisons), default=0.0)

    @property
    def mean_relative_error(self) -> float:
        """The mean relative error over all elements of all tensors."""
        return self._mean("mean_relative_error")

    @property
    def outlier_share(self) -> float:
        """Share of elements beyond the tolerance, from 0 to 1."""
        total = sum(part.element_count for part in self.comparisons)
        return sum(part.outlier_count for part in self.comparisons) / total if total else 0.0

    @property
    def max_ulp(self) -> float | None:
        """The largest distance in units in the last place; None without a float tensor."""
        return max(
            (part.max_ulp for part in self.comparisons if part.max_ulp is not None), default=None
        )

    def raise_if_failed(self) -> None:
        """Raises if a comparison failed.

        Raises:
            VerificationError: with the report as its text (code ``not-close``). It is also an
                AssertionError.
        """
        if not self.passed:
            raise VerificationError(f"verify_correctness: {self}", code="not-close")

    def _mean(self, name: str) -> float:
        total = sum(part.element_count for part in self.comparisons)
        weighted = sum(getattr(part, name) * part.element_count for part in self.comparisons)
        return weighted / total if total else 0.0

    def __str__(self) -> str:
        failed = [part for part in self.comparisons if not part.passed]
        count = len(self.comparisons)
        what = "1 tensor" if count == 1 else f"{count} tensors"
        head = f"{what} as expected" if not failed else f"{len(failed)} of {what} not as expected"
        shown = (failed or list(self.comparisons))[:_SHOWN]
        lines = [head, *map(str, shown)]
        rest = len(failed or self.comparisons) - len(shown)
        return "\n".join([*lines, f"... and {rest} more"] if rest else lines)


@public_call
def verify_correctness(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    *,
    check_dtype: bool = True,
    equal_nan: bool = True,
) -> VerificationReport:
    """Compares a result with the expected one.

    An element passes if `|actual - expected| <= atol + rtol * |expected|`.

    Args:
        actual: a tensor on any device, a numpy array, a number, or tuples, lists and dicts of them.
        expected: the same structure, for example the CPU's result.
        rtol: relative tolerance; by default that of `torch.testing.assert_close` for the dtypes.
        atol: absolute tolerance, with the same default.
        check_dtype: whether different dtypes fail. Values are always compared.
        equal_nan: whether two NaN are equal.

    Returns:
        The report. It lists wrong structures, shapes, dtypes and values; `report.raise_if_failed()`
        raises an exception for these.

    Raises:
        OperatorInputError: a tolerance is negative or NaN, or a part is not a tensor, array or
            number with values (code ``verification-input``).
        KindError: a tolerance is not a number (code ``argument-kind``).
    """
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise OperatorInputError(
                f"verify_correctness: `{name}` must be 0 or more, got {value}. Omit it for the "
                "dtype's default.",
                code="verification-input",
            )
    found = []
    for path, got, wanted in _pairs("", actual, expected):
        if isinstance(wanted, str):
            found.append(mismatch(path, wanted))
            continue
        found.append(
            compare_tensors(
                path,
                got,
                wanted,
                tolerances=(rtol, atol),
                check_dtype=check_dtype,
                equal_nan=equal_nan,
            )
        )
    return VerificationReport(tuple(found))


def _pairs(path: str, actual: Any, expected: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields each tensor's path with both tensors, or with None and the mismatch."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        yield from _members(path, dict(actual), dict(expected))
    elif isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        yield from _members(path, dict(enumerate(actual)), dict(enumerate(expected)))
    elif actual is None and expected is None:
        return
    elif _is_container(actual) or _is_container(expected):
        yield path, None, f"expected {type(expected).__name__}, got {type(actual).__name__}"
    else:
        got, wanted = _tensor(path, actual), _tensor(path, expected)
        if got.is_nested and wanted.is_nested:
            yield from _pairs(path, list(got.unbind()), list(wanted.unbind()))
        elif got.is_nested or wanted.is_nested:
            yield path, None, f"nested: expected {wanted.is_nested}, got {got.is_nested}"
        else:
            yield path, _dense(got), _dense(wanted)


def _is_container(value: Any) -> bool:
    return value is None or isinstance(value, (Mapping, list, tuple))


def _members(
    path: str, actual: dict[Any, Any], expected: dict[Any, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for key, wanted in expected.items():
        if key in actual:
            yield from _pairs(f"{path}[{key!r}]", actual[key], wanted)
        else:
            yield f"{path}[{key!r}]", None, "missing"
    for key in actual:
        if key not in expected:
            yield f"{path}[{key!r}]", None, "not expected"


def _tensor(path: str, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        if value.is_meta:
            raise OperatorInputError(
                "verify_correctness: each part must have values, got a meta "
                f"tensor{f' at {path}' if path else ''}. Compare its shape and dtype separately.",
                code="verification-input",
            )
        return value.detach()
    try:
        # A copy: torch rejects arrays with negative strides, and warns about read-only ones.
        return torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError) as failure:
        raise OperatorInputError(
            "verify_correctness: each part must be a tensor, a numpy array or a number, got "
            f"{type(value).__name__}{f' at {path}' if path else ''}. Compare it separately.",
            code="verification-input",
        ) from failure


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor's values as a dense CPU tensor."""
    there = tensor.cpu()
    if there.is_quantized:
        return there.dequantize()
    if there.layout is not torch.strided:
        return there.to_dense()
    return there.resolve_conj().resolve_neg()
