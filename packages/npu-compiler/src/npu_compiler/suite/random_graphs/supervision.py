"""Runs random graphs in child processes; a signal, a hang or an exception is a finding.

What a child does is in worker.py, what is kept of a run in ledger.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_compiler.suite.random_graphs.ledger import Finding, Ledger
from npu_compiler.suite.random_graphs.modes import Mode

__all__ = ["Limits", "replay", "run"]

_CHILD = "npu_compiler.suite.random_graphs.worker"
# Graphs of one process: then a fresh one, so that memory does not grow without end.
_CHUNK = 400
# The imports of a child, on a busy machine: they come before its first graph.
_START_S = 600
_SAVE_S = 10.0
# Shrinking may take this share of a run's time; further findings are kept as drawn.
_SHRINKING_SHARE = 0.35
_FIGURES = ("programs", "nodes", "lowered", "calls", "from_cache")


@dataclass(frozen=True)
class Limits:
    """When a run ends, and what it may spend.

    Attributes:
        count: of graphs, those of earlier parts of the run included.
        seconds: of this part; None for no bound.
        jobs: children at a time.
        timeout_s: of one graph.
        shrink_s: of making one finding smaller.
    """

    count: int
    seconds: float | None = None
    jobs: int = 1
    timeout_s: float = 120.0
    shrink_s: float = 40.0


def run(
    ledger: Ledger,
    directory: Path | None,
    limits: Limits,
    *,
    on_finding: Callable[[Finding], object],
    on_save: Callable[[Ledger], object],
) -> None:
    """Compares graphs, on from where a ledger stands.

    Args:
        ledger: counts; changed as the run goes on.
        directory: where the ledger and findings.jsonl are kept; None for nowhere.
        limits: see Limits.
        on_finding: called with each finding, by one thread at a time.
        on_save: called every ten seconds and at the end, likewise.
    """
    state = _State(ledger, directory, limits, on_finding, on_save)
    for chunk in sorted(ledger.open_chunks):
        state.waiting.put(chunk)
    threads = [threading.Thread(target=state.work, daemon=True) for _ in range(limits.jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(timeout=0.5)
    finally:
        state.stop()
        for thread in threads:
            thread.join()
        state.save()
    if state.failure is not None:
        raise state.failure


def replay(graph: str, mode: str, timeout_s: float) -> tuple[str, str]:
    """Compares one graph, as a finding shows it, alone; returns how it ends, and in detail."""
    child = _Child(["replay"], timeout_s, json.dumps([graph, mode]))
    found = [line["result"] for line in child.lines() if "result" in line]
    return (found[0]["kind"], found[0]["detail"]) if found else child.end


class _State:
    """A run, shared by the threads that each watch one child."""

    def __init__(
        self,
        ledger: Ledger,
        directory: Path | None,
        limits: Limits,
        on_finding: Callable[[Finding], object],
        on_save: Callable[[Ledger], object],
    ) -> None:
        self.waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.failure: Exception | None = None
        self._ledger = ledger
        self._directory = directory
        self._limits = limits
        self._on_finding = on_finding
        self._on_save = on_save
        self._lock = threading.RLock()
        self._started = self._saved = time.monotonic()
        self._before_s = ledger.seconds
        self._shrinking_s = 0.0
        self._is_stopped = False
        self._children: set[_Child] = set()

    def work(self) -> None:
        """Takes chunks until the run is over."""
        try:
            while (chunk := self._take()) is not None:
                while chunk in self._ledger.open_chunks and not self._is_over():
                    self._part(chunk, *self._ledger.open_chunks[chunk])
        except Exception as failure:  # noqa: BLE001  # raised again by the thread that waits
            self.failure = failure
            self.stop()

    def stop(self) -> None:
        """Ends the children; what they had not reported is run again when the run is resumed."""
        with self._lock:
            self._is_stopped = True
            for child in self._children:
                child.kill()

    def save(self) -> None:
        """Writes the ledger down."""
        with self._lock:
            self._saved = time.monotonic()
            self._ledger.seconds = self._before_s + self._saved - self._started
            if self._directory is not None:
                self._ledger.write(self._directory)
            self._on_save(self._ledger)

    def _take(self) -> int | None:
        with self._lock:
            if self._is_over():
                return None
            with contextlib.suppress(queue.Empty):
                return self.waiting.get_nowait()
            left = self._limits.count - self._ledger.next_first
            return self._ledger.take_chunk(min(_CHUNK, left)) if left > 0 else None

    def _is_over(self) -> bool:
        limit = self._limits.seconds
        return self._is_stopped or (limit is not None and time.monotonic() - self._started > limit)

    def _part(self, chunk: int, first: int, end: int) -> None:
        """Runs numbers of a chunk in one child."""
        # Known when the child starts: once too much time went into it, findings stay as drawn.
        spent = self._shrinking_s / max(1.0, time.monotonic() - self._started)
        shrink_s = 0.0 if spent > _SHRINKING_SHARE * self._limits.jobs else self._limits.shrink_s
        arguments = [self._ledger.seed, first, end, self._ledger.verify or "-", shrink_s]
        child = _Child([str(each) for each in arguments], self._limits.timeout_s)
        with self._lock:
            self._children.add(child)
        drawn: dict[str, Any] | None = None
        found: Finding | None = None
        is_open = False
        ended = time.monotonic()
        for line in child.lines():
            if "number" in line:
                drawn, found, is_open = line, None, True
            elif "result" in line and drawn is not None:
                is_open = False
                found = self._end(chunk, drawn, line["result"])
                ended = time.monotonic()
                if found is None or not shrink_s:
                    self._report(found)
                    found = None
            elif "smaller" in line and found is not None:
                with self._lock:
                    self._shrinking_s += time.monotonic() - ended
                sizes = {"smaller": line["smaller"], "simpler": line["simpler"]}
                self._report(dataclasses.replace(found, **sizes))
                found = None
            if self._is_over():
                child.kill()
        with self._lock:
            self._children.discard(child)
        self._report(found)  # shrinking was cut short
        if self._is_over() or found is not None:
            return
        if is_open and drawn is not None:
            result = {"kind": child.end[0], "detail": child.end[1]}
            self._report(self._end(chunk, drawn, result))
        elif chunk in self._ledger.open_chunks and drawn is None:
            raise RuntimeError(f"graph {first} was not drawn: {child.end[1]}")

    def _end(self, chunk: int, drawn: dict[str, Any], result: dict[str, Any]) -> Finding | None:
        """Counts how one graph ended."""
        kind, mode = drawn["kind"], Mode.from_json(drawn["mode"])
        labels = [f"kind: {kind.partition(':')[0]}", *mode.labels()]
        labels += [f"form: {kind.partition(':')[2]}"] if ":" in kind else []
        with self._lock:
            figures = {name: result.get(name, 0) for name in _FIGURES}
            self._ledger.add(labels, figures, result["kind"])
            self._ledger.advance(chunk, drawn["number"] + 1)
            if time.monotonic() - self._saved > _SAVE_S:
                self.save()
        if result["kind"] in ("equal", "invalid"):
            return None
        return Finding(
            drawn["number"], kind, result["kind"], result["detail"], drawn["graph"], drawn["mode"]
        )

    def _report(self, finding: Finding | None) -> None:
        if finding is None:
            return
        with self._lock:
            self._ledger.add_finding(finding)
            if self._directory is not None:
                with (self._directory / "findings.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(dataclasses.asdict(finding)) + "\n")
            self._on_finding(finding)


class _Child:
    """A worker process and what it says."""

    def __init__(self, arguments: list[str], timeout_s: float, text: str | None = None) -> None:
        self._timeout_s = timeout_s
        self._text = text
        self.end = ("killed", "")
        self._process = subprocess.Popen(
            [sys.executable, "-m", _CHILD, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def kill(self) -> None:
        """Ends the process."""
        self._process.kill()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yields each JSON line; afterwards `end` says how the process ended."""
        process = self._process
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
            if not line.endswith("\n"):
                break
            yield json.loads(line)
        status = process.wait()
        process.stdout.close()
        if is_late:
            self.end = ("hangs", "no result in time")
        elif status < 0:
            self.end = ("killed", f"the process ended with {signal.Signals(-status).name}")
        else:
            self.end = ("killed", f"the process ended with status {status}")
