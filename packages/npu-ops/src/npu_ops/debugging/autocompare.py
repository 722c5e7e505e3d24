"""`OpAutoCompare`: compares each device call with the same call on the CPU in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from npu_ops import _C
from npu_ops.debugging.capture import GIB, CaptureStore, captured
from npu_ops.debugging.comparator import Tolerances, Verdict, judge
from npu_ops.debugging.report import Report, Value
from npu_ops.debugging.tool import Call, OpTool, aside
from npu_ops.debugging.trial import Trial
from npu_ops.errors import VerificationError
from npu_runtime.public_calls import public_call

__all__ = ["VERDICT_COLUMNS", "OpAutoCompare", "verdict_cells"]

VERDICT_COLUMNS = (
    "verdict",
    "max abs error",
    "max rel error",
    "cosine",
    "CPU's own error",
    "reference",
    "what differs",
)


class OpAutoCompare(OpTool):
    """Runs each device call on the CPU as well, and keeps the calls that differ.

    The program continues with the device's results. Calls on CPU tensors are not compared.

    Attributes:
        store: store of the calls that differ; None to capture none.
    """

    tool_name = "AUTOCOMPARE"

    @public_call
    def __init__(
        self,
        names: Sequence[str] | None = None,
        excluded: Sequence[str] | None = None,
        *,
        tolerances: Mapping[str | torch.dtype, tuple[float, float]] | None = None,
        captures: str | Path | None = None,
        budget_bytes: int = GIB,
        every: int = 1,
        per_signature: int | None = None,
    ) -> None:
        """Prepares the tool; see OpTool for the options that all tools have.

        Args:
            names: ops to compare.
            excluded: ops to exclude.
            tolerances: (rtol, atol) by op (exact name or pattern) or by dtype of a result; ops take
                precedence. The default is torch's.
            captures: a new or empty directory for the calls that differ.
            budget_bytes: maximum size of that directory.
            every: compare one call of an op in this many.
            per_signature: maximum number of calls of one signature to compare.

        Raises:
            OperatorInputError: [tool-option], [directory-taken].
        """
        super().__init__(names, excluded, every=every, per_signature=per_signature)
        given = tolerances or {}
        self._tolerances = Tolerances(
            by_op={key: value for key, value in given.items() if isinstance(key, str)},
            by_dtype={key: value for key, value in given.items() if isinstance(key, torch.dtype)},
        )
        self.store = None if captures is None else CaptureStore(captures, budget_bytes)
        self._found: list[tuple[Call, str, Verdict, str]] = []

    def take(self, call: Call) -> Any:
        """Runs the call on the device, then on the CPU; returns the device's results."""
        if call.device.type == "cpu":
            return call.op(*call.args, **call.kwargs)
        signature = call.signature
        folder: Path | None = None
        with self._lock:
            with aside():
                trial = Trial(call)
            programs = _C.program_runs()
            got = trial.on_device()
            programs = _C.program_runs() - programs
            with aside():
                verdict = judge(trial, got, self._tolerances, programs=programs)
                if self.store is not None and not verdict.is_right and got.error is None:
                    folder = self.store.save(captured(trial, got, verdict.problem))
            self._found.append((_light(call), signature, verdict, folder.name if folder else ""))
        if got.error is not None:
            raise got.error
        return got.results

    @property
    def differences(self) -> list[tuple[str, Verdict]]:
        """The calls that differ, by signature, in order."""
        return [(name, verdict) for _, name, verdict, _ in self._found if not verdict.is_right]

    @property
    def passed(self) -> bool:
        """Whether no call differs."""
        return not self.differences

    def raise_if_failed(self) -> None:
        """Raises if a call differs.

        Raises:
            VerificationError: [op-differs] with the report as its text.
        """
        if not self.passed:
            raise VerificationError(f"OpAutoCompare: {self.report()}", code="op-differs")

    def report(self) -> Report:
        """Returns one row for each compared call."""
        rows = tuple(
            (call.number, call.phase, signature, *verdict_cells(verdict), _place(call), folder)
            for call, signature, verdict, folder in self._found
        )
        bad = [n for n, (_, _, verdict, _) in enumerate(self._found) if not verdict.is_right]
        skipped = sum(verdict.status == "not compared" for _, _, verdict, _ in self._found)
        summary = f"{len(rows):,} calls compared, {len(bad):,} differ"
        if bad:
            summary += f"; the first is {self._found[bad[0]][1]}"
        if skipped:
            summary += f"; {skipped:,} have no counterpart on the CPU"
        if self.selection.left_out:
            summary += f"; {self.selection.left_out:,} left out by sampling"
        return Report(
            "npu against the CPU, op by op",
            ("call", "phase", "signature", *VERDICT_COLUMNS, "called by", "capture"),
            rows,
            summary + ".",
            frozenset(bad),
            not bad,
        )


def verdict_cells(verdict: Verdict) -> tuple[Value, ...]:
    """Formats a verdict as cells below `VERDICT_COLUMNS`."""
    return (
        verdict.status,
        verdict.max_absolute_error,
        verdict.max_relative_error,
        verdict.cosine,
        verdict.host_error,
        verdict.precision,
        verdict.problem,
    )


def _place(call: Call) -> str:
    return call.line or call.node


def _light(call: Call) -> Call:
    """Returns the call without its arguments, which would keep memory alive."""
    return replace(call, args=(), kwargs={})
