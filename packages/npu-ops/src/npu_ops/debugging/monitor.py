"""`ProcessMonitor`: samples a command's processor and memory use over time, and draws a chart."""

from __future__ import annotations

import csv
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Self

import psutil

from npu_command.charts import PALETTE, Chart, check_matplotlib, make_figure, own_style
from npu_ops.errors import OperatorInputError
from npu_ops.memory_account import read_accounts
from npu_runtime.public_calls import public_call

__all__ = ["Panel", "ProcessMonitor", "Sample", "draw_series"]


_WIDTH, _HEIGHT = 760, 165


@dataclass(frozen=True)
class Panel:
    """Lines with a common scale.

    Attributes:
        title: title with the unit.
        lines: name -> a value for each time.
    """

    title: str
    lines: Mapping[str, Sequence[float]]


def draw_series(times_s: Sequence[float], panels: Sequence[Panel], *, title: str) -> Chart:
    """Draws panels below each other over a common time axis.

    Args:
        times_s: time of each value in seconds, ascending.
        panels: one or more panels, from top to bottom.
        title: title of the chart.
    """
    with own_style():
        figure = make_figure(_WIDTH, 40 + _HEIGHT * len(panels), title)
        places = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        for axes, panel in zip(places, panels, strict=True):
            for colour, (name, line) in zip(PALETTE, panel.lines.items(), strict=False):
                axes.plot(times_s, line, color=colour, label=name, linewidth=1)
            axes.set_title(panel.title, loc="left", weight="bold", size=9)
            most = max((max(line, default=0.0) for line in panel.lines.values()), default=0.0)
            axes.set_ylim(0, 1.05 * most or 1.0)
            axes.grid(axis="y", alpha=0.3)
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
        places[-1].set_xlim(0, max(times_s, default=0.0) or 1.0)
        places[-1].set_xlabel("s")
    return Chart(figure, title)


_MB = 1e6


@dataclass(frozen=True)
class Sample:
    """One sample of a process and its children.

    Attributes:
        time_s: time since the first sample.
        processes: number of processes.
        cpu_percent: CPU time since the previous sample, in percent of one processor.
        rss_bytes: resident memory of all processes.
        npu_allocated_bytes: device memory allocated by tensors.
        npu_reserved_bytes: device memory reserved by pools.
    """

    time_s: float
    processes: int
    cpu_percent: float
    rss_bytes: int
    npu_allocated_bytes: int
    npu_reserved_bytes: int


class ProcessMonitor:
    """Samples a process periodically on a thread, from `start` to `stop` or within a `with` block.

    Attributes:
        samples: the samples so far.
    """

    @public_call
    def __init__(
        self,
        process_id: int | None = None,
        *,
        interval_s: float = 0.1,
        accounts: str | Path | None = None,
    ) -> None:
        """Prepares the monitor.

        Args:
            process_id: process to monitor; this process by default.
            interval_s: seconds between samples.
            accounts: directory in which monitored processes report their device memory; None to use
                this process's counters.

        Raises:
            OperatorInputError: [tool-option] for an interval of 0 or less, or a missing process.
        """
        if not 0 < interval_s <= threading.TIMEOUT_MAX:
            raise OperatorInputError(
                "`interval_s` must be above 0 and at most threading.TIMEOUT_MAX, got "
                f"{interval_s}. Pass, for example, 0.1.",
                code="tool-option",
            )
        try:
            self._root = psutil.Process(process_id)
        except (psutil.Error, ValueError) as error:
            raise OperatorInputError(
                f"`process_id` must be a running process, got {process_id} ({error}). Pass its "
                "id, or omit it for this process.",
                code="tool-option",
            ) from None
        self._interval_s = interval_s
        self._accounts = None if accounts is None else Path(accounts)
        self._known: dict[int, psutil.Process] = {}
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._begin = time.monotonic()
        self.samples: list[Sample] = []

    def start(self) -> Self:
        """Starts sampling; returns itself."""
        self._end.clear()
        self._look()
        self._thread = threading.Thread(target=self._watch, name="npu-monitor", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Takes a last sample and stops."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._end.set()
            thread.join()
            self._look()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.stop()

    @public_call
    def write_csv(self, path: str | Path) -> None:
        """Writes a row per sample."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([one.name for one in fields(Sample)])
            writer.writerows(astuple(sample) for sample in self.samples)

    @public_call
    def write_svg(self, path: str | Path) -> None:
        """Writes the chart.

        Raises:
            OperatorInputError: [plot-library] if matplotlib is missing.
        """
        check_matplotlib("npu-ops", OperatorInputError)
        times = [sample.time_s for sample in self.samples]
        panels = [
            Panel("Processor (percent of one)", {"CPU": self._column("cpu_percent", 1)}),
            Panel("Memory (MB)", {"resident": self._column("rss_bytes", _MB)}),
            Panel(
                "Device memory (MB)",
                {
                    "reserved": self._column("npu_reserved_bytes", _MB),
                    "allocated": self._column("npu_allocated_bytes", _MB),
                },
            ),
        ]
        Path(path).write_text(draw_series(times, panels, title="Process over time").svg(), "utf-8")

    def summary(self) -> str:
        """The peaks, on one line."""
        end = self.samples[-1].time_s if self.samples else 0.0
        return (
            f"{len(self.samples)} looks in {end:.1f} s; "
            f"at most {self._peak('cpu_percent', 1):.0f} % of a processor, "
            f"{self._peak('rss_bytes', _MB):,.0f} MB resident, "
            f"{self._peak('npu_allocated_bytes', _MB):,.1f} MB of device memory in tensors, "
            f"{self._peak('npu_reserved_bytes', _MB):,.1f} MB in pools"
        )

    def _peak(self, name: str, unit: float) -> float:
        return max(self._column(name, unit), default=0.0)

    def _column(self, name: str, unit: float) -> Sequence[float]:
        return [getattr(sample, name) / unit for sample in self.samples]

    def _watch(self) -> None:
        while not self._end.wait(self._interval_s):
            self._look()

    def _look(self) -> None:
        try:
            found = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        cpu, rss, alive = 0.0, 0, 0
        for process in found:
            # psutil counts since the previous call, whose time it keeps in the object.
            process = self._known.setdefault(process.pid, process)
            try:
                cpu += process.cpu_percent()
                rss += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            alive += 1
        allocated, reserved = self._device_memory([process.pid for process in found])
        if alive:
            now = time.monotonic() - self._begin
            self.samples.append(Sample(now, alive, cpu, rss, allocated, reserved))

    def _device_memory(self, process_ids: list[int]) -> tuple[int, int]:
        if self._accounts is not None:
            return read_accounts(self._accounts, process_ids)
        if self._root.pid != os.getpid():
            return 0, 0
        import torch

        npu = torch.get_device_module("npu")
        return (npu.memory_allocated(), npu.memory_reserved()) if npu.is_initialized() else (0, 0)
