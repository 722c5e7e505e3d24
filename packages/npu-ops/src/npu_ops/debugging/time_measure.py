"""`OpTimeMeasure`: how long each op takes, forward and backward."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from npu_ops.debugging.calls.call import Call
from npu_ops.debugging.report import Report
from npu_ops.debugging.tool import OpTool

__all__ = ["OpTimeMeasure", "synchronize"]

_MS = 1e-6  # milliseconds in a nanosecond


@dataclass
class _Times:
    """Nanoseconds of the calls of one op in one phase."""

    each_ns: list[int] = field(default_factory=list)


class OpTimeMeasure(OpTool):
    """Measures the host's time of each call, with the device's work in it.

    The device is waited for before and after each call, so that a call's time is its own; the whole
    program becomes slower by that.
    """

    tool_name = "TIME_MEASURE"

    def __init__(
        self,
        names: Sequence[str] | None = None,
        excluded: Sequence[str] | None = None,
        *,
        is_synchronized: bool = True,
        every: int = 1,
        per_signature: int | None = None,
    ) -> None:
        """Prepares the tool; see OpTool for the options that all tools have.

        Args:
            names: of the ops to measure.
            excluded: of those to leave alone.
            is_synchronized: whether to wait for the device around each call; without it only the
                host's part is measured.
            every: of the calls of one op, measure the first of so many.
            per_signature: how many calls of one signature to measure.

        Raises:
            OperatorInputError: [tool-option].
        """
        super().__init__(names, excluded, every=every, per_signature=per_signature)
        self._is_synchronized = is_synchronized
        self._times: dict[tuple[str, str], _Times] = {}

    def take(self, call: Call) -> Any:
        """Runs the call between two looks at the clock."""
        device = call.device
        if self._is_synchronized:
            synchronize(device)
        start = time.perf_counter_ns()
        results = call.op(*call.args, **call.kwargs)
        if self._is_synchronized:
            synchronize(device)
        duration = time.perf_counter_ns() - start
        with self._lock:
            self._times.setdefault((call.name, call.phase), _Times()).each_ns.append(duration)
        return results

    def total_ms(self, phase: str) -> float:
        """Milliseconds of all measured calls of a phase, `forward` or `backward`."""
        return _MS * sum(
            sum(times.each_ns) for (_, where), times in self._times.items() if where == phase
        )

    def report(self) -> Report:
        """One row for each op and phase, the longest in sum first."""
        found = sorted(self._times.items(), key=lambda item: -sum(item[1].each_ns))
        whole = sum(sum(times.each_ns) for times in self._times.values()) or 1
        rows = tuple(
            (
                name,
                phase,
                len(times.each_ns),
                sum(times.each_ns) * _MS,
                100 * sum(times.each_ns) / whole,
                sum(times.each_ns) / len(times.each_ns) * _MS,
                min(times.each_ns) * _MS,
                max(times.each_ns) * _MS,
            )
            for (name, phase), times in found
        )
        return Report(
            "Time by op",
            ("op", "phase", "calls", "total ms", "share %", "mean ms", "least ms", "most ms"),
            rows,
            f"forward {self.total_ms('forward'):.3f} ms, backward {self.total_ms('backward'):.3f} "
            f"ms in {sum(len(times.each_ns) for _, times in found):,} calls.",
        )


def synchronize(device: torch.device) -> None:
    """Waits until a device has done its work."""
    if device.type not in ("cpu", "meta"):
        torch.get_device_module(device).synchronize(device)
