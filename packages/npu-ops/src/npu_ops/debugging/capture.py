"""`OpCapture`: writes calls to disk so that they can be replayed, within a size budget."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_ops.debugging.capture_format import Capture, capture_size, is_writable, save_capture
from npu_ops.debugging.report import Report
from npu_ops.debugging.tool import Call, OpTool, aside
from npu_ops.debugging.trial import Outcome, Snapshot, Trial
from npu_ops.errors import OperatorInputError

__all__ = ["CaptureStore", "OpCapture", "captured"]

GIB = 2**30


class CaptureStore:
    """A directory of captures with a size budget. Thread-safe.

    Attributes:
        directory: directory of the captures.
        written_bytes: their size.
        saved: their number.
        over_budget: number of calls left out because they exceeded the budget.
        not_writable: number of calls left out because an argument is neither a strided tensor nor a
            plain value.
    """

    def __init__(self, directory: str | Path, budget_bytes: int) -> None:
        """Sets the directory, which need not exist.

        Raises:
            OperatorInputError: [tool-option] for a budget below 1, [directory-taken] for a
                directory that is not empty.
        """
        self.directory = Path(directory)
        if budget_bytes < 1:
            raise OperatorInputError(
                f"`budget_bytes` must be a positive integer, got {budget_bytes}. Pass the maximum "
                f"size of all captures in bytes.",
                code="tool-option",
            )
        if self.directory.exists() and (
            not self.directory.is_dir() or any(self.directory.iterdir())
        ):
            raise OperatorInputError(
                f"{self.directory}: the directory must be new or empty, got one with files. Name "
                f"another, or remove it.",
                code="directory-taken",
            )
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self.written_bytes = 0
        self.saved = 0
        self.over_budget = 0
        self.not_writable = 0

    def save(self, capture: Capture) -> Path | None:
        """Writes a capture; returns its folder, or None if it is left out."""
        if not is_writable(capture):
            self.not_writable += 1
            return None
        size = capture_size(capture)
        with self._lock:
            if self.written_bytes + size > self._budget_bytes:
                self.over_budget += 1
                return None
            self.written_bytes += size  # reserved; corrected to the actual size below
        folder = self.directory / f"{capture.facts['number']:06d}-{capture.op}"
        written = save_capture(capture, folder)
        with self._lock:
            self.written_bytes += written - size
            self.saved += 1
        return folder

    def __str__(self) -> str:
        text = f"{self.saved:,} calls captured in {self.directory} ({self.written_bytes:,} bytes)"
        if self.over_budget:
            text += f"; {self.over_budget:,} left out, the budget is {self._budget_bytes:,} bytes"
        if self.not_writable:
            text += (
                f"; {self.not_writable:,} left out, whose arguments are sparse, nested or objects"
            )
        return text


class OpCapture(OpTool):
    """Writes each call with its arguments before and after it, its results and its random state.

    Gradients are separate calls: `GeluBackward0` calls `aten.gelu_backward`, which has the same
    `sequence` as its forward call of `aten.gelu`.

    Attributes:
        store: the directory with its captures.
    """

    tool_name = "CAPTURE"

    def __init__(
        self,
        directory: str | Path = "op-captures",
        names: Sequence[str] | None = None,
        excluded: Sequence[str] | None = None,
        *,
        budget_bytes: int = GIB,
        every: int = 1,
        per_signature: int | None = None,
    ) -> None:
        """Prepares the tool; see OpTool for the options that all tools have.

        Args:
            directory: new or empty.
            names: ops to capture.
            excluded: ops to exclude.
            budget_bytes: maximum size of the directory on disk.
            every: capture one call of an op in this many.
            per_signature: maximum number of calls of one signature to capture.

        Raises:
            OperatorInputError: [tool-option], [directory-taken].
        """
        super().__init__(names, excluded, every=every, per_signature=per_signature)
        self.store = CaptureStore(directory, budget_bytes)
        self._rows: list[tuple[int, str, str, str, str]] = []

    def take(self, call: Call) -> Any:
        """Runs the call between two snapshots."""
        signature = call.signature
        with aside():
            trial = Trial(call)
        got = trial.on_device()
        if got.error is not None:
            raise got.error
        with aside():
            folder = self.store.save(captured(trial, got))
        with self._lock:
            where = "" if folder is None else folder.name
            self._rows.append((call.number, call.phase, signature, call.line or call.node, where))
        return got.results

    def report(self) -> Report:
        """Returns the calls in order, with their folders."""
        return Report(
            "Captured calls",
            ("call", "phase", "signature", "called by", "folder"),
            tuple(sorted(self._rows)),
            str(self.store),
        )


def captured(trial: Trial, got: Outcome, note: str = "") -> Capture:
    """Returns the capture of a call: its state before and after it ran.

    Args:
        trial: the call with its arguments before.
        got: its outcome.
        note: the reason for the capture.
    """
    call = trial.call
    is_random = trial.state is None or got.state is None or not got.state.equal(trial.state)
    return Capture(
        op=call.name,
        facts={
            "number": call.number,
            "phase": call.phase,
            "node": call.node,
            "sequence": call.sequence,
            "line": call.line,
            "is_grad_enabled": call.is_grad_enabled,
            "signature": call.signature,
        },
        before=trial.before,
        after=Snapshot.take((got.results, got.args, got.kwargs)),
        state=trial.state if is_random else None,
        note=note,
    )
