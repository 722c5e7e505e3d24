"""Cell: the verdict for one subject, dtype and check, over all samples."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from npu_ops import _C
from npu_ops.tolerances import tolerance_of

__all__ = ["Cell", "Outcome", "Sample", "cell_of"]

# Compares one sample on the device and on the CPU: None if equal, else the difference.
Sample = Callable[[], str | None]
_DETAIL = 400  # maximum length of a detail


class Outcome(enum.StrEnum):
    """The outcome of a cell."""

    PASSED = "passed"
    FAILED = "failed"
    EMPTY = "empty"  # the database has no sample
    SIGNAL = "signal"  # the process crashed
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class Cell:
    """One row of the table.

    Attributes:
        subject: name in torch's database or of the interface, for example ``"addmm_decomposed"``.
        dtype: for example ``"float32"``.
        check: name of the check, for example ``"forward"``.
        outcome: the outcome.
        samples: number of compared samples.
        failures: number of differing samples.
        detail: the first difference.
        programs: number of calls that ran as programs.
        tolerance: allowed difference of forced programs, as a share of the largest value of a
            result; empty otherwise.
        suite: `torch`, `interface` or `models`.
        case: id of the case, in the suites that have cases.
        layout: layout of the case's tensors.
        duration_s: seconds of a case, on both sides together.
    """

    subject: str
    dtype: str
    check: str
    outcome: Outcome
    samples: int = 0
    failures: int = 0
    detail: str = ""
    programs: int = 0
    tolerance: str = ""
    suite: str = "torch"
    case: str = ""
    layout: str = ""
    duration_s: float = 0.0


def cell_of(subject: str, dtype: str, check: str, samples: Iterable[Sample]) -> Cell:
    """Runs the samples of a cell; continues after a differing or incomparable sample."""
    details = []
    count = 0
    served = _C.program_runs()
    try:
        for count, sample in enumerate(samples, start=1):
            difference = _compare(sample)
            if difference is not None:
                details.append(f"sample {count}: {difference}")
    except Exception as error:  # noqa: BLE001  # of the database, while it makes a sample
        details.append(f"sample {count + 1} cannot be made: {type(error).__name__}: {error}")
    served = _C.program_runs() - served
    allowed = tolerance_of(subject).of(getattr(torch, dtype)) if served else None
    return Cell(
        subject=subject,
        dtype=dtype,
        check=check,
        outcome=Outcome.FAILED if details else Outcome.PASSED if count else Outcome.EMPTY,
        samples=count,
        failures=len(details),
        detail=" ".join(details[0].split())[:_DETAIL] if details else "",
        programs=served,
        tolerance="" if allowed is None else f"{allowed:.2g}",
    )


def _compare(sample: Sample) -> str | None:
    try:
        return sample()
    except Exception as error:  # noqa: BLE001  # of copying or comparing, not of the op
        return f"cannot be compared: {type(error).__name__}: {error}"
