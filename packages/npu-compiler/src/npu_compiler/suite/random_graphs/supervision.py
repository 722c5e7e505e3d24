"""Runs random graphs in child processes; a signal, a hang or an exception is a finding.

What a child does is in worker.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Finding", "Tally", "replay", "run"]

_CHILD = "npu_compiler.suite.random_graphs.worker"
# Graphs of one seed: then a fresh process, so that memory does not grow without end.
_BATCH = 250
# The imports of a child, on a busy machine: they come before its first graph.
_START_S = 600


@dataclass(frozen=True)
class Finding:
    """A graph that did not end as eager does; `graph` goes back into ``--replay``."""

    detail: str
    graph: str
    device: str


@dataclass
class Tally:
    """Counts over a run."""

    graphs: int = 0
    programs: int = 0
    nodes: int = 0
    lowered: int = 0
    findings: list[Finding] = field(default_factory=list)


def run(
    count: int,
    *,
    seed: int,
    jobs: int,
    timeout_s: float,
    on_finding: Callable[[Finding], object],
    on_batch: Callable[[Tally], object],
) -> Tally:
    """Compares `count` graphs.

    Args:
        count: of all graphs; hypothesis may run out of new ones a little earlier.
        seed: the same graphs come again with the same seed.
        jobs: children at a time.
        timeout_s: of one graph.
        on_finding: called with each finding, by one thread at a time.
        on_batch: called with the counts so far, likewise.
    """
    tally, lock = Tally(), threading.Lock()
    sizes = [min(_BATCH, count - start) for start in range(0, count, _BATCH)]

    def work(numbered: tuple[int, int]) -> None:
        number, size = numbered
        for step in _steps(size, seed * 1_000_003 + number, timeout_s):
            with lock:
                _add(tally, step, on_finding)
        with lock:
            on_batch(tally)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, enumerate(sizes)))
    return tally


def replay(graph: str, device: str, timeout_s: float) -> str | None:
    """Compares one graph, as a finding shows it, alone; returns what differs, or None."""
    child = _Child(["replay", device], timeout_s, graph)
    ends = [step for step in child.lines() if "end" in step]
    return ends[0]["end"] if ends else child.end


def _add(tally: Tally, step: dict[str, Any], on_finding: Callable[[Finding], object]) -> None:
    tally.graphs += 1
    for name in ("programs", "nodes", "lowered"):
        setattr(tally, name, getattr(tally, name) + step.get(name, 0))
    if step["end"] is not None:
        finding = Finding(step["end"], step["graph"], step["device"])
        tally.findings.append(finding)
        on_finding(finding)


def _steps(count: int, seed: int, timeout_s: float) -> Iterator[dict[str, Any]]:
    """The ends of a seed's graphs; after a graph that ended its child, the rest in another."""
    skip = 0
    while True:
        child = _Child([str(count), str(seed), str(skip)], timeout_s)
        current: dict[str, Any] = {}
        is_done = False
        for line in child.lines():
            is_done = is_done or "done" in line
            if is_done:
                continue
            if "graph" in line:
                current = line
                continue
            skip += 1
            yield {**current, **line}
            current = {}
        if is_done:
            return
        if not current:
            yield {"graph": "", "device": "", "end": f"no graph was drawn: {child.end}"}
            return
        skip += 1
        yield {**current, "end": child.end}


class _Child:
    """A worker process and what it says."""

    def __init__(self, arguments: list[str], timeout_s: float, text: str | None = None) -> None:
        self._command = [sys.executable, "-m", _CHILD, *arguments]
        self._timeout_s = timeout_s
        self._text = text
        self.end = ""

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yields each JSON line; afterwards `end` says how the process ended."""
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Thousands of programs that nobody will ask for again are not kept on disk.
            env=os.environ | {"NPU_COMPILE_CACHE_SIZE_MB": "0"},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self._text or "")
        process.stdin.close()
        is_late = False
        limit_s = self._timeout_s + _START_S
        while True:
            timer = threading.Timer(limit_s, process.kill)
            limit_s = self._timeout_s
            timer.start()
            line = process.stdout.readline()
            is_late = not timer.is_alive()
            timer.cancel()
            if not line:
                break
            yield json.loads(line)
        status = process.wait()
        process.stdout.close()
        if is_late:
            self.end = "no result in time"
        elif status < 0:
            self.end = f"the process ended with {signal.Signals(-status).name}"
        else:
            self.end = f"the process ended with status {status}"
