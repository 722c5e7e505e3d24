"""A vendor compiler's report on one model: its verdict, its blob and its estimate."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "ESTIMATE_NOTE",
    "UNEXPLAINED",
    "Estimate",
    "TargetReport",
    "read_estimate",
    "read_reason",
]

UNEXPLAINED = "refused without a message"
ESTIMATE_NOTE = "the compiler's estimate, not a measurement"

_LATENCY = re.compile(r"Estimated inference latency: ([0-9.eE+-]+) us")
_SHARE = re.compile(r"- (DMA|DPU|SW) duration \[ns\]: \d+ \(([0-9.]+) %\)")
_ACTIVITY = re.compile(r"Activity Factor - ([0-9.]+)")
_PEAK = re.compile(r"Compilation memory usage: Peak (\d+) KB")
_UNMODELED = re.compile(r"unsupported by VPUNN[^\[\n]*\[([^\]\n]*)\]")
_ENGINES = {"DMA": "DMA", "DPU": "DPU", "SW": "SHAVE"}
_ERROR_LINE = re.compile(r"^\[ERROR\]\s+\S+\s+(.*)$", re.MULTILINE)
_UNHANDLED = re.compile(r"^(Unhandled exception: .*?)(?: \(0x\w+\))?\.?$", re.MULTILINE)  # Wine's
_MOST_REASON = 600


@dataclass(frozen=True)
class Estimate:
    """The compiler's estimate of one run; never a measurement.

    Attributes:
        latency_ms: of the whole program.
        shares: share of the latency in which each engine is busy, in percent: DMA, DPU, SHAVE.
        activity_factor: 0 to 1, by which the compiler scales its figure for energy; None without.
        compile_memory_bytes: the compiler's own peak memory; None without.
        unmodeled: SHAVE operations that the cost model lacks and the latency therefore omits.
        note: says that the figures are an estimate.
    """

    latency_ms: float
    shares: dict[str, float]
    activity_factor: float | None
    compile_memory_bytes: int | None
    unmodeled: tuple[str, ...]
    note: str = ESTIMATE_NOTE

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Estimate:
        """Returns the estimate that `dataclasses.asdict` gave, also after JSON."""
        return cls(**{**fields, "unmodeled": tuple(fields["unmodeled"])})

    def __str__(self) -> str:
        parts = [f"{self.latency_ms:.3g} ms"]
        parts += [f"{name} {share:.0f} %" for name, share in self.shares.items()]
        if self.unmodeled:
            parts.append(f"without {', '.join(self.unmodeled)}, which its cost model lacks")
        return f"{', '.join(parts)} ({self.note})"


@dataclass(frozen=True)
class TargetReport:
    """The compiler's answer for one model and one target.

    Attributes:
        target: platform number, such as "4000".
        compiler: its version.
        is_accepted: whether it made a blob.
        reason: the refusal in the compiler's own words, or how its process ended; "" if accepted.
        operation: friendly name of the operation that the reason names, or with which the refusal
            was found to begin; "" if neither is known.
        blob: file of the compiled program; None if refused.
        blob_bytes: size of that file.
        duration_s: seconds of compiling.
        estimate: None if refused, or if the compiler gives none.
        schedule: JSON file of a target_compiler.schedule.Schedule; None if refused, or if the
            compiler gives none.
    """

    target: str
    compiler: str
    is_accepted: bool
    reason: str
    operation: str
    blob: Path | None
    blob_bytes: int
    duration_s: float
    estimate: Estimate | None
    schedule: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields as JSON values."""
        fields = dataclasses.asdict(self)
        return fields | {
            "blob": None if self.blob is None else str(self.blob),
            "schedule": None if self.schedule is None else str(self.schedule),
        }


def read_estimate(log: str) -> Estimate | None:
    """Parses the estimate in the compiler's log; returns None if it has none."""
    latency = _last(_LATENCY, log)
    if latency is None:
        return None
    activity, peak, unmodeled = (_last(each, log) for each in (_ACTIVITY, _PEAK, _UNMODELED))
    return Estimate(
        latency_ms=float(latency) / 1e3,
        shares={_ENGINES[name]: float(share) for name, share in _SHARE.findall(log)},
        activity_factor=None if activity is None else float(activity),
        compile_memory_bytes=None if peak is None else int(peak) * 1024,
        unmodeled=tuple(
            name.strip().removeprefix("builtin_") for name in (unmodeled or "").split(",") if name
        ),
    )


def read_reason(log: str) -> str:
    """Returns the compiler's own words for a refusal, on one line."""
    said = log.rpartition("Compiler returned msg:")[2].strip() if "returned msg:" in log else ""
    lines = dict.fromkeys(
        [*said.splitlines()[:3], *_ERROR_LINE.findall(log)[:2], *_UNHANDLED.findall(log)[:1]]
    )
    words = " ".join(lines).replace("\0", " ").split()
    return " ".join(words)[:_MOST_REASON] or UNEXPLAINED


def _last(pattern: re.Pattern[str], log: str) -> str | None:
    found = pattern.findall(log)
    return found[-1] if found else None
