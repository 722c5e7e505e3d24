"""What a tuning session measured or estimated, as a value and as text."""

from __future__ import annotations

from dataclasses import dataclass

from npu_compiler.target_compiler.report import ESTIMATE_NOTE
from npu_compiler.tuning.store import TuningRecord

__all__ = ["TuningReport"]


@dataclass(frozen=True)
class TuningReport:
    """What a session measured or estimated.

    Attributes:
        records: one per graph.
        skipped: graph -> why it was not tuned.
    """

    records: tuple[TuningRecord, ...]
    skipped: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{len(self.records)} graphs tuned, {len(self.skipped)} not"]
        for record in self.records:
            chosen = f"{record.key[:12]}: {record.chosen}, {record.speedup:.2f}x the default"
            if record.estimated_by:
                note = f"{ESTIMATE_NOTE}; compiler {record.estimated_by}"
                chosen += f" on {record.device} ({note})"
            lines.append(chosen)
            lines += [
                f"  {name:18} {time_us:10.1f} us  error {record.errors[name]:.1e}"
                for name, time_us in sorted(record.times_us.items(), key=lambda item: item[1])
            ]
            lines += [f"  {name:18} {reason}" for name, reason in record.refused.items()]
        lines += [f"{name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines)
