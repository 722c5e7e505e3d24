"""`OpOverflowCheck`: which op made the first NaN or infinity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.comparator import is_partly_undefined
from npu_ops.debugging.report import Report
from npu_ops.debugging.tool import Call, OpTool, aside
from npu_ops.debugging.unwritten import Reading, UnwrittenMemory
from npu_ops.errors import OperatorInputError, VerificationError

__all__ = ["OpOverflowCheck"]

_ORIGIN, _PASSED_ON, _UNWRITTEN = "origin", "passed on", "unwritten memory"


@dataclass(frozen=True)
class _Counts:
    """Counts of elements that are NaN, infinite, and past the limit."""

    nan: int = 0
    infinite: int = 0
    large: int = 0

    def __add__(self, other: _Counts) -> _Counts:
        return _Counts(
            self.nan + other.nan, self.infinite + other.infinite, self.large + other.large
        )

    def __bool__(self) -> bool:
        return bool(self.nan or self.infinite or self.large)


@dataclass(frozen=True)
class _Finding:
    """One call with values that are not finite, or too large.

    Attributes:
        number: of the call.
        phase: forward or backward.
        signature: of the call.
        place: who called it.
        counts: of the values.
        source: where they are from.
        is_failure: whether they are wrong.
    """

    number: int
    phase: str
    signature: str
    place: str
    counts: _Counts
    source: str
    is_failure: bool

    @property
    def is_marked(self) -> bool:
        return self.is_failure and self.source != _PASSED_ON


class OpOverflowCheck(OpTool):
    """Looks for NaN, infinity, and values past a limit in what each call gives or writes.

    A call is the origin of NaN if it read none, and of infinity or of a value past the limit if
    all that it read was finite and within the limit, numbers among its arguments included.
    Infinity that the program brings in itself, such as a mask of `-inf`, is passed on, which is no
    failure; NaN always is one.

    Memory that nothing wrote (`torch.empty`, a tensor that grew) holds what was there before: it is
    not looked at. What a call computes of it is told as `unwritten memory`, and is a failure where
    the value would be another if the memory were finite, such as 0 times NaN, or where the program
    takes it as a Python number.
    """

    tool_name = "OVERFLOW_CHECK"
    follows_all = True  # a write by an op that is not looked at is a write

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
                f"limit: a size above 0, got {limit}. Leave it out for the dtype's own.",
                code="tool-option",
            )
        self._limit = limit
        self._is_fatal = is_fatal
        self._checked = 0
        self._memory = UnwrittenMemory()
        self._found: list[_Finding] = []

    def take(self, call: Call) -> Any:
        """Runs the call and looks at its arguments before it and its results after it.

        Raises:
            VerificationError: [op-overflow] at the first origin, if the tool is fatal.
        """
        signature = call.signature
        with aside(), self._lock:
            reading = self._memory.before(call)
            given = self._given(reading)
        results = call.op(*call.args, **call.kwargs)
        with aside(), self._lock:
            self._checked += 1
            counts, source, is_failure = self._judge(reading, given, results)
            if not counts:
                return results
            finding = _Finding(
                call.number,
                call.phase,
                signature,
                call.line or call.node,
                counts,
                source,
                is_failure,
            )
            self._found.append(finding)
        if self._is_fatal and finding.is_marked:
            said = "finite arguments" if source == _ORIGIN else "memory that nothing wrote"
            raise VerificationError(
                f"{signature}: from {said} came {counts.nan} NaN, {counts.infinite} infinities and "
                f"{counts.large} values past the limit; called by {finding.place}. Compare the "
                f"call with OpAutoCompare(['{call.name}']), or cast it with OpDtypeCast.",
                code="op-overflow",
            )
        return results

    def leave(self, call: Call) -> Any:
        """Runs a call that is not looked at; what it writes is written."""
        with aside(), self._lock:
            reading = self._memory.before(call)
        results = super().leave(call)
        with aside(), self._lock:
            self._memory.after(reading, results)
        return results

    @property
    def origins(self) -> list[str]:
        """Signatures of the calls that made such values of good ones, in order."""
        return [one.signature for one in self._found if one.source == _ORIGIN]

    @property
    def unwritten(self) -> list[str]:
        """Signatures of the calls that took such values from unwritten memory, in order."""
        return [one.signature for one in self._found if one.source == _UNWRITTEN]

    @property
    def passed(self) -> bool:
        """Whether no call made such values, and no NaN was passed on."""
        return not any(one.is_failure for one in self._found)

    def report(self) -> Report:
        """One row for each call that gave such values; those that are to blame are marked."""
        rows = tuple(
            (
                one.number,
                one.phase,
                one.signature,
                one.counts.nan,
                one.counts.infinite,
                one.counts.large,
                one.source,
                one.place,
            )
            for one in self._found
        )
        summary = f"{self._checked:,} calls checked, {len(rows):,} gave NaN, infinity or too much"
        if self.origins:
            summary += f"; the first that made it is {self.origins[0]}"
        if self.unwritten:
            summary += (
                f"; the first that took it from memory that nothing wrote is {self.unwritten[0]}"
            )
        return Report(
            "Overflows",
            ("call", "phase", "signature", "NaN", "infinite", "large", "from", "called by"),
            rows,
            summary + ".",
            frozenset(n for n, one in enumerate(self._found) if one.is_marked),
            self.passed,
        )

    def _given(self, reading: Reading) -> _Counts:
        """Counts wrong values among the inputs of a call."""
        call = reading.call
        masks = reading.unwritten or (None,) * len(call.tensors)
        pairs = {
            id(tensor): (tensor, None if mask is None else ~mask)
            for tensor, mask in zip(call.tensors, masks, strict=True)
            if id(tensor) not in reading.overwritten
        }
        numbers = [
            leaf
            for leaf in tree_leaves((call.args, call.kwargs))
            if isinstance(leaf, float | complex)
        ]
        found = [self._count(tensor, part) for tensor, part in pairs.values()]
        found += [self._count(torch.tensor(number, dtype=torch.complex128)) for number in numbers]
        return sum(found, _Counts())

    def _judge(self, reading: Reading, given: _Counts, results: Any) -> tuple[_Counts, str, bool]:
        """Returns wrong values of a call's results, their source, and whether they fail."""
        twins = self._memory.after(reading, results)
        made, unwritten, is_poisoned = _Counts(), _Counts(), False
        for leaf in _outcome(reading.call, results):
            mask = self._memory.mask(leaf)
            made += self._count(leaf, None if mask is None else ~mask)
            if mask is not None and reading.is_open:
                unwritten += self._count(leaf, mask)
            twin = twins.get(id(leaf))
            is_poisoned |= twin is not None and _is_poisoned(leaf, twin, mask)
        if made:
            if is_poisoned:
                return made, _UNWRITTEN, True
            is_origin = bool(made.nan and not given.nan) or not given
            return made, _ORIGIN if is_origin else _PASSED_ON, is_origin or made.nan > 0
        if reading.is_open and isinstance(results, float | complex):
            taken = self._count(torch.tensor(results, dtype=torch.complex128))
            return taken, _UNWRITTEN, True
        return unwritten, _UNWRITTEN, False

    def _count(self, tensor: torch.Tensor, part: torch.Tensor | None = None) -> _Counts:
        """Looks at the elements of a tensor, or at a part of them."""
        if not _has_values(tensor):
            return _Counts()
        values = _on_cpu(tensor) if part is None else _on_cpu(tensor)[part]
        if bool(values.isfinite().all()) and self._limit is None:
            return _Counts()
        large = 0
        if self._limit is not None:
            large = int(((values.abs() > self._limit) & values.isfinite()).sum())
        return _Counts(int(values.isnan().sum()), int(values.isinf().sum()), large)


def _outcome(call: Call, results: Any) -> Iterable[torch.Tensor]:
    """Returns the tensors that a call gave and wrote, each once."""
    leaves = [
        leaf
        for place, leaf in enumerate(tree_leaves(results))
        if not is_partly_undefined(call.op, place)
    ]
    found = [leaf for leaf in (*leaves, *call.written) if isinstance(leaf, torch.Tensor)]
    return {id(leaf): leaf for leaf in found}.values()


def _is_poisoned(tensor: torch.Tensor, twin: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether an element is not finite that would be, if all memory that the call read were."""
    if not _has_values(tensor) or not _has_values(twin):
        return False
    lost = ~_on_cpu(tensor).isfinite() & _on_cpu(twin).isfinite()
    return bool(lost.any() if mask is None else lost[~mask].any())


def _has_values(tensor: torch.Tensor) -> bool:
    is_number = tensor.is_floating_point() or tensor.is_complex()
    is_plain = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)
    return is_number and is_plain and not tensor.is_meta


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor.detach().cpu()
    # Eight bits have no isnan of their own.
    return values.to(torch.float32) if values.itemsize == 1 else values
