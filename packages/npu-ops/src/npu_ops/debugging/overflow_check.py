"""`OpOverflowCheck`: finds the op that produced the first NaN or infinity."""

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
    """Counts of NaN elements, infinite elements, and elements beyond the limit."""

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
    """A call with non-finite or too large values.

    Attributes:
        number: number of the call.
        phase: forward or backward.
        signature: signature of the call.
        place: call site.
        counts: counts of the values.
        source: origin of the values.
        is_failure: whether the values are an error.
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
    """Checks the results and writes of each call for NaN, infinity, and values beyond a limit.

    A call is the origin of NaN if its inputs have no NaN, and of infinity or a value beyond the
    limit if all its inputs, including numbers, are finite and within the limit. Infinity from the
    program's own data, such as a mask of `-inf`, is propagated, which is not a failure; NaN always
    is.

    Uninitialized memory (`torch.empty`, a tensor that grew) has arbitrary contents and is not
    checked. Values computed from it are reported as `unwritten memory`. They are failures if finite
    memory would give other values, such as 0 times NaN, or if the program reads them as Python
    numbers.
    """

    tool_name = "OVERFLOW_CHECK"
    follows_all = True  # writes by ops that are not checked count too

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
            names: ops to check.
            excluded: ops to exclude.
            limit: largest valid magnitude; 65504 shows float16 overflows. None for the dtype's
                limit.
            is_fatal: whether to raise at the first origin.
            every: check one call of an op in this many.
            per_signature: maximum number of calls of one signature to check.

        Raises:
            OperatorInputError: [tool-option].
        """
        super().__init__(names, excluded, every=every, per_signature=per_signature)
        if limit is not None and not limit > 0:
            raise OperatorInputError(
                f"`limit` must be above 0, got {limit}. Omit it for the dtype's limit.",
                code="tool-option",
            )
        self._limit = limit
        self._is_fatal = is_fatal
        self._checked = 0
        self._memory = UnwrittenMemory()
        self._found: list[_Finding] = []

    def take(self, call: Call) -> Any:
        """Runs the call, and checks its arguments before and its results after.

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
        """Runs an unchecked call, and records its writes."""
        with aside(), self._lock:
            reading = self._memory.before(call)
        results = super().leave(call)
        with aside(), self._lock:
            self._memory.after(reading, results)
        return results

    @property
    def origins(self) -> list[str]:
        """Signatures of the calls that produced such values from valid inputs, in order."""
        return [one.signature for one in self._found if one.source == _ORIGIN]

    @property
    def unwritten(self) -> list[str]:
        """Signatures of the calls that read such values from uninitialized memory, in order."""
        return [one.signature for one in self._found if one.source == _UNWRITTEN]

    @property
    def passed(self) -> bool:
        """Whether no call produced such values or propagated NaN."""
        return not any(one.is_failure for one in self._found)

    def report(self) -> Report:
        """Returns one row per call with such values; origins are marked."""
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
        """Counts invalid values among the inputs of a call."""
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
        """Returns invalid values of a call's results, their source, and whether they fail."""
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
        """Counts the values of a tensor, or of a part of its elements."""
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
    """Returns the tensors that a call returned or wrote, each once."""
    leaves = [
        leaf
        for place, leaf in enumerate(tree_leaves(results))
        if not is_partly_undefined(call.op, place)
    ]
    found = [leaf for leaf in (*leaves, *call.written) if isinstance(leaf, torch.Tensor)]
    return {id(leaf): leaf for leaf in found}.values()


def _is_poisoned(tensor: torch.Tensor, twin: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether an element is non-finite only because uninitialized memory was read."""
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
    # 8-bit floats have no isnan.
    return values.to(torch.float32) if values.itemsize == 1 else values
