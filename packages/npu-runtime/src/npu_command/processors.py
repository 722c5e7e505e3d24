"""Processors available to a process, of one or several kinds."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Processors", "limit_threads", "read_processors"]


@dataclass(frozen=True)
class Processors:
    """The processors that this process may use.

    Attributes:
        usable: their number, limited by affinity and the cgroup's quota.
        cores: number of cores, each with one or more processors.
        fast: number of these cores that are of the fastest kind.
    """

    usable: int
    cores: int
    fast: int

    @property
    def counts(self) -> list[int]:
        """Candidate thread counts, the largest first."""
        return sorted({self.usable, min(self.cores, self.usable), min(self.fast, self.usable)})[
            ::-1
        ]

    def __str__(self) -> str:
        """Describes the processors."""
        if self.usable == 1:
            return "1 processor"
        if len(self.counts) == 1:
            return f"{self.usable} processors of one kind"
        return f"{self.usable} processors, {self.cores} cores, {self.fast} of them fast"


def read_processors(
    system: Path = Path("/sys"), allowed: Iterable[int] | None = None
) -> Processors:
    """Returns the processors that this process may use.

    Args:
        system: the root of Linux's /sys and /proc; replaced in tests.
        allowed: numbers of processors; by default this thread's affinity.
    """
    devices = system / "devices"
    numbers = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    usable = min(len(numbers), _quota(system / "fs" / "cgroup"))
    cores: dict[str, int] = {}  # and the speed of each
    for number in numbers:
        place = devices / "system" / "cpu" / f"cpu{number}"
        siblings = _text(place / "topology" / "thread_siblings_list") or str(number)
        cores[siblings] = _speed(devices, place, number)
    fastest = max(cores.values())
    fast = sum(speed == fastest for speed in cores.values())
    return Processors(max(usable, 1), len(cores), fast)


def _speed(devices: Path, place: Path, number: int) -> int:
    """Returns a number that is larger for faster kinds of processors."""
    if capacity := _text(place / "cpu_capacity"):
        return int(capacity)
    # Intel's hybrid processors; of the small cores, those without a third cache are the slowest.
    if number in _listed(_text(devices / "cpu_core" / "cpus")):
        return 2
    return int((place / "cache" / "index3").exists())


def _quota(group: Path) -> int:
    """Returns a control group's CPU quota in processors, rounded up."""
    quota, _, period = _text(group / "cpu.max").partition(" ")
    if not period:
        quota = _text(group / "cpu" / "cpu.cfs_quota_us")
        period = _text(group / "cpu" / "cpu.cfs_period_us")
    is_bound = quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0
    return math.ceil(int(quota) / int(period)) if is_bound else sys.maxsize


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _listed(text: str) -> set[int]:
    """Returns the numbers of a list such as "0-3,8"."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def limit_threads(count: int) -> None:
    """Limits the threads of this process's kernels and torch's ops."""
    os.environ["OMP_NUM_THREADS"] = str(count)  # which torch reads when it is imported
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
