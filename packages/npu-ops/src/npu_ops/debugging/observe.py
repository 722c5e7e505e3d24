"""`OpObserve` and `OpTimeMeasure`: logs ops, and measures their time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.report import Report
from npu_ops.debugging.tool import Call, OpTool, aside, describe
from npu_ops.errors import OperatorInputError

__all__ = ["OpObserve", "OpTimeMeasure", "synchronize"]


_LEVELS = (1, 2, 3)


class OpObserve(OpTool):
    """Logs each call: its name, its arguments and results, and optionally their values."""

    tool_name = "OBSERVE"

    def __init__(
        self,
        names: Sequence[str] | None = None,
        excluded: Sequence[str] | None = None,
        *,
        level: int = 2,
        stream: TextIO | None = None,
        every: int = 1,
        per_signature: int | None = None,
    ) -> None:
        """Prepares the tool; see OpTool for the options that all tools have.

        Args:
            names: ops to log.
            excluded: ops to exclude.
            level: 1 for names and call sites; 2 adds dtypes, shapes, layouts and devices of
                arguments and results; 3 adds the minimum, maximum, mean and NaN count of each
                tensor.
            stream: stream to print each finished call to; None for the report only.
            every: log one call of an op in this many.
            per_signature: maximum number of calls of one signature to log.

        Raises:
            OperatorInputError: [tool-option].
        """
        super().__init__(names, excluded, every=every, per_signature=per_signature)
        if level not in _LEVELS:
            raise OperatorInputError(
                f"`level` must be 1, 2 or 3, got {level}. Pass 1 for names, 2 for shapes, 3 for "
                "values.",
                code="tool-option",
            )
        self._level = level
        self._stream = stream
        self._rows: list[tuple[int, str, str, str, str, str]] = []

    def take(self, call: Call) -> Any:
        """Runs and logs the call."""
        given = self._words(call.args, call.kwargs)
        results = call.op(*call.args, **call.kwargs)
        returned = self._words((results,), {})
        row = (call.number, call.phase, call.name, given, returned, call.line or call.node)
        with self._lock:
            self._rows.append(row)
            if self._stream is not None:
                arrow = f"({given}) -> {returned}" if self._level > 1 else ""
                print(f"{row[0]} {row[1]} {row[2]}{arrow}  {row[5]}", file=self._stream)
        return results

    def report(self) -> Report:
        """Returns one row per call, in order of completion."""
        names = {row[2] for row in self._rows}
        return Report(
            "Calls of ops",
            ("call", "phase", "op", "arguments", "results", "called by"),
            tuple(self._rows),
            f"{len(self._rows):,} calls of {len(names):,} ops.",
        )

    def _words(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if self._level == 1:
            return ""
        words = [describe(value) for value in args]
        words += [f"{name}={describe(value)}" for name, value in kwargs.items()]
        if self._level == 3:
            leaves = tree_leaves((args, kwargs))
            with aside():
                words += [_values(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return ", ".join(words)


def _values(tensor: torch.Tensor) -> str:
    """Formats values, such as `{-1.2 to 3.4, mean 0.1, 2 NaN}`."""
    if tensor.is_meta or tensor.numel() == 0 or tensor.layout is not torch.strided:
        return "{}"
    if tensor.is_complex() or tensor.is_nested or tensor.is_quantized:
        return "{}"
    values = tensor.detach().cpu().to(torch.float64)
    known = values[~values.isnan()]
    nan = values.numel() - known.numel()
    text = "all NaN"
    if known.numel():
        text = f"{known.min():.4g} to {known.max():.4g}, mean {known.mean():.4g}"
    return f"{{{text}, {nan} NaN}}" if nan and known.numel() else f"{{{text}}}"


_MS = 1e-6  # nanoseconds to milliseconds


@dataclass
class _Times:
    """Durations of the calls of one op in one phase, in nanoseconds."""

    each_ns: list[int] = field(default_factory=list)


class OpTimeMeasure(OpTool):
    """Measures the host time of each call, including the device's work.

    Synchronizes before and after each call, so that calls do not overlap; this slows the program
    down.
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
            names: ops to measure.
            excluded: ops to exclude.
            is_synchronized: whether to synchronize around each call; otherwise only the host's part
                is measured.
            every: measure one call of an op in this many.
            per_signature: maximum number of calls of one signature to measure.

        Raises:
            OperatorInputError: [tool-option].
        """
        super().__init__(names, excluded, every=every, per_signature=per_signature)
        self._is_synchronized = is_synchronized
        self._times: dict[tuple[str, str], _Times] = {}

    def take(self, call: Call) -> Any:
        """Runs and times the call."""
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
        """Returns the milliseconds of all measured calls of a phase, `forward` or `backward`."""
        return _MS * sum(
            sum(times.each_ns) for (_, where), times in self._times.items() if where == phase
        )

    def report(self) -> Report:
        """Returns one row per op and phase, the longest total first."""
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
    """Waits until a device has finished its work."""
    if device.type not in ("cpu", "meta"):
        torch.get_device_module(device).synchronize(device)
