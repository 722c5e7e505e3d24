"""How many threads run a step of a kernel program.

Threads steal work from each other, so a slow core costs nothing but its share. What can cost more
than it brings is a second thread on one core, or the slow cores of a processor that has several
kinds: where there are such, decode steps with each count of threads are timed.
"""

from __future__ import annotations

import time
from statistics import median

from npu_command.processors import read_processors
from npu_ops.kernel_programs.native import most_threads

__all__ = ["ThreadCount"]

_STEPS = 4  # with one count, of which the first wakes threads and is not counted
_ROUNDS = 2
_STEPS_TO_NEXT = 512  # after which the counts are timed again
_SECONDS_TO_LOOK = 2.0  # after which affinity and quota are read again
_GAIN = 0.97  # of the time: less is no reason for more threads


class ThreadCount:
    """The count of threads that decodes fastest, of those that may.

    `npu_ops.kernel_programs.native.most_threads` bounds it. One count is no choice, and nothing
    is timed then.
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
        """Begins anew where other processors may be used, or torch allows another number."""
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
        """Returns the count for many rows, whose time is that of the arithmetic."""
        self._look()
        return self._counts[0]

    def of_step(self) -> int:
        """Returns the count for the next step that decodes."""
        self._look()
        if len(self._counts) == 1:
            return self._chosen
        if self._steps >= self._timed_steps:
            return self._chosen
        return self._counts[self._steps // _STEPS % len(self._counts)]

    def note(self, count: int, seconds: float) -> None:
        """Adds the time of a step that decoded with so many threads."""
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
        for count in reversed(self._counts[:-1]):  # from few threads on
            if median(self._times[count]) < _GAIN * median(self._times[best]):
                best = count
        self._chosen = best
