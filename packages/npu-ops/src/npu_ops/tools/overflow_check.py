"""`OpOverflowCheck`: which op made the first NaN or infinity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.errors import OperatorInputError, VerificationError

from .call import Call
from .report import Report
from .tool import OpTool, aside

__all__ = ["OpOverflowCheck"]


@dataclass(frozen=True)
class _Finding:
    """One call with values that are not finite, or too large."""

    number: int
    phase: str
    signature: str
    place: str
    nan: int
    infinite: int
    large: int
    is_origin: bool


class OpOverflowCheck(OpTool):
    """Looks for NaN, infinity, and values past a limit in what each call gives or writes.

    A call is the origin if all its floating-point arguments were finite and within the limit.
    """

    tool_name = "OVERFLOW_CHECK"

    def __init__(
        self,
        names: Sequence[str] | None = None,
        excluded: Sequence[str] | None = None,
        *,
        limit: float | None = None,
        is_fatal: bool = False,
        every: int = 1,
        per_signature: int | None = None,
    ) -> None:
        """Prepares the tool; see OpTool for the options that all tools have.

        Args:
            names: of the ops to check.
            excluded: of those to leave alone.
            limit: the largest size that is right; 65504 shows what would overflow in float16. None
                for the dtype's own.
            is_fatal: whether the first origin raises.
            every: of the calls of one op, check the first of so many.
            per_signature: how many calls of one signature to check.

        Raises:
            OperatorInputError: [tool-option].
        """
        super().__init__(names, excluded, every=every, per_signature=per_signature)
        if limit is not None and not limit > 0:
            raise OperatorInputError(
                f"limit: a size above 0; got {limit}. Leave it out for the dtype's own.",
                "tool-option",
            )
        self._limit = limit
        self._is_fatal = is_fatal
        self._checked = 0
        self._found: list[_Finding] = []

    def take(self, call: Call) -> Any:
        """Runs the call and looks at its arguments before it and its results after it.

        Raises:
            VerificationError: [op-overflow] at the first origin, if the tool is fatal.
        """
        with aside():
            was_bad = any(self._counts(call.tensors))
        signature = call.signature
        results = call.op(*call.args, **call.kwargs)
        with aside():
            nan, infinite, large = self._counts([*tree_leaves(results), *call.written])
        with self._lock:
            self._checked += 1
            if nan + infinite + large == 0:
                return results
            finding = _Finding(
                call.number,
                call.phase,
                signature,
                call.line or call.node,
                nan,
                infinite,
                large,
                not was_bad,
            )
            self._found.append(finding)
        if self._is_fatal and finding.is_origin:
            raise VerificationError(
                f"{signature}: from finite arguments came {nan} NaN, {infinite} infinities and "
                f"{large} values past the limit; called by {finding.place}. Compare the call with "
                f"OpAutoCompare(['{call.name}']), or cast it with OpDtypeCast.",
                "op-overflow",
            )
        return results

    @property
    def origins(self) -> list[str]:
        """Signatures of the calls that made such values of good ones, in order."""
        return [one.signature for one in self._found if one.is_origin]

    @property
    def passed(self) -> bool:
        """Whether no call gave such values."""
        return not self._found

    def report(self) -> Report:
        """One row for each call that gave such values; origins are marked."""
        rows = tuple(
            (
                one.number,
                one.phase,
                one.signature,
                one.nan,
                one.infinite,
                one.large,
                "origin" if one.is_origin else "passed on",
                one.place,
            )
            for one in self._found
        )
        summary = f"{self._checked:,} calls checked, {len(rows):,} gave NaN, infinity or too much"
        if self.origins:
            summary += f"; the first that made it is {self.origins[0]}"
        return Report(
            "Overflows",
            ("call", "phase", "signature", "NaN", "infinite", "large", "from", "called by"),
            rows,
            summary + ".",
            frozenset(n for n, one in enumerate(self._found) if one.is_origin),
            self.passed,
        )

    def _counts(self, leaves: Sequence[Any]) -> tuple[int, int, int]:
        """The sums over the tensors among some values, each tensor once."""
        tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
        found = [self._count(tensor) for tensor in tensors.values()]
        nan, infinite, large = ([one[place] for one in found] for place in range(3))
        return sum(nan), sum(infinite), sum(large)

    def _count(self, tensor: torch.Tensor) -> tuple[int, int, int]:
        """How many elements are NaN, infinite, and past the limit."""
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
            return 0, 0, 0
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            return 0, 0, 0
        values = tensor.detach().cpu()
        if values.itemsize == 1:
            values = values.to(torch.float32)  # eight bits have no isnan of their own
        if bool(values.isfinite().all()) and self._limit is None:
            return 0, 0, 0
        large = 0
        if self._limit is not None:
            large = int(((values.abs() > self._limit) & values.isfinite()).sum())
        return int(values.isnan().sum()), int(values.isinf().sum()), large
