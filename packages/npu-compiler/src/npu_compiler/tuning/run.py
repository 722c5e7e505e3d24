"""Tuning sessions: their limits and records."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_compiler.tuning.estimation import Estimator
    from npu_compiler.tuning.store import TuningRecord

__all__ = ["TuningRun", "current_run", "open_run"]


@dataclass
class TuningRun:
    """An open session with its records so far."""

    budget_s: float
    max_error: float
    estimator: Estimator | None = None
    records: list[TuningRecord] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


_session: TuningRun | None = None
_lock = threading.Lock()


def current_run() -> TuningRun | None:
    """Returns the open session, or None."""
    return _session


@contextlib.contextmanager
def open_run(
    *, budget_s: float, max_error: float, estimator: Estimator | None = None
) -> Iterator[TuningRun]:
    """Tunes the inference graphs that are compiled inside the block, on any thread.

    Args:
        budget_s: seconds of measuring per graph, without compilation.
        max_error: candidates that differ more from the default's result are not chosen.
        estimator: ranks the candidates for an absent NPU; None measures on the device.
    """
    global _session
    with _lock:
        before, _session = _session, TuningRun(budget_s, max_error, estimator)
    try:
        yield _session
    finally:
        with _lock:
            _session = before
