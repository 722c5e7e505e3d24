"""Number of threads that run a step of a kernel program.

Threads steal work from each other, so a slow core does not delay the others. A second thread on a
core, or the slow cores of a hybrid processor, can still cost more than they gain: on such machines,
decode steps with each number of threads are timed.
"""

from __future__ import annotations

import time
from statistics import median

from npu_command.processors import read_processors
from npu_ops.kernel_programs.native import most_threads

__all__ = ["ThreadCount"]

_STEPS = 4  # timed steps per count; the first wakes threads and is not counted
_ROUNDS = 2
_STEPS_TO_NEXT = 512  # interval of repeated timing
_SECONDS_TO_LOOK = 2.0  # interval of reading affinity and quota
_GAIN = 0.97  # minimum gain for more threads


class ThreadCount:
    """The thread count with the fastest decode steps.

    `npu_ops.kernel_programs.native.most_threads` bounds it. If only one count is possible, nothing
    is timed.
    """

    def __init__(self) -> None:
        """Reads the processors."""
        self._processors = read_processors()
        self._most = 0
        self._look_at = 0.0
        self._restart()

    def _restart(self) -> None:
        self._most = most_threads()
        self._counts = sorted({min(count, self._most) for count in self._processors.counts})[::-1]
        self._times: dict[int, list[float]] = {count: [] for count in self._counts}
        self._timed_steps = len(self._counts) * _STEPS * _ROUNDS
        self._chosen = self._counts[0]
        self._steps = 0

    def _look(self) -> None:
        """Restarts if the available processors or torch's number of threads changed."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _SECONDS_TO_LOOK
            processors = read_processors()
            if processors != self._processors:
                self._processors = processors
                self._restart()
        if most_threads() != self._most:
            self._restart()

    def of_prompt(self) -> int:
        """Returns the count for many rows, which take mostly arithmetic."""
        self._look()
        return self._counts[0]

    def of_step(self) -> int:
        """Returns the count for the next decode step."""
        self._look()
        if len(self._counts) == 1:
            return self._chosen
        if self._steps >= self._timed_steps:
            return self._chosen
        return self._counts[self._steps // _STEPS % len(self._counts)]

    def note(self, count: int, seconds: float) -> None:
        """Records the time of a decode step with a number of threads."""
        if len(self._counts) == 1:
            return
        timed = self._timed_steps
        if self._steps < timed and count in self._times and self._steps % _STEPS != 0:
            self._times[count].append(seconds)
        self._steps += 1
        if self._steps == timed:
            self._choose()
        elif self._steps >= timed + _STEPS_TO_NEXT:
            self._steps = 0
            for times in self._times.values():
                times.clear()

    def _choose(self) -> None:
        best = self._counts[-1]
        for count in reversed(self._counts[:-1]):  # ascending
            if median(self._times[count]) < _GAIN * median(self._times[best]):
                best = count
        self._chosen = best
