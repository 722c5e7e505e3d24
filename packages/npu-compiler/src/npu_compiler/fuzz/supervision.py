"""Supervises worker processes, and keeps a ledger of findings."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from npu_command.children import Child, run_each
from npu_command.whole_files import draft_of, write_text
from npu_compiler.fuzz.graph import FLOAT_EDGES, RandomGraph
from npu_compiler.fuzz.modes import Mode

__all__ = ["Finding", "Ledger", "Limits", "replay", "run", "signature"]

# A directory has ledger.json (seed, counts, positions of chunks), summary.csv (counts) and
# findings.jsonl (one line per graph that differs from eager).


@dataclass(frozen=True)
class Finding:
    """A graph with a result that differs from eager's."""

    number: int  # of the graph, in the run's seed
    kind: str  # kind of the graph, see draw_graph
    end: str  # "differs", "silent", "raises", "killed" or "hangs"
    detail: str  # the difference, the error, or the signal
    # graph, mode: as drawn
    graph: str
    mode: str
    # smaller, simpler: after shrinking; empty if out of time, or the process crashed
    smaller: str = ""
    simpler: str = ""

    @property
    def defect(self) -> str:
        """Returns a key that findings of one cause share, as far as visible from outside."""
        return signature(
            self.end,
            self.detail,
            RandomGraph.from_json(self.smaller or self.graph),
            Mode.from_json(self.simpler or self.mode),
        )


def signature(end: str, detail: str, graph: RandomGraph, mode: Mode) -> str:
    """Returns one line for graphs with the same failure and the same calls."""
    calls = sorted({step.target.partition(".")[2] for step in graph.steps} - {"getitem"})
    fills = sorted({s.fill for s in graph.inputs} & {*FLOAT_EDGES, "extreme", "outside"})
    error = re.sub(r"[\d(].*", "", detail)[:60] if end == "raises" else ""
    parts = [end, error.strip(), ",".join(calls), ",".join(fills), *_needed(mode)]
    return " | ".join(part for part in parts if part)


def _needed(mode: Mode) -> list[str]:
    own, plain = asdict(mode), asdict(Mode())
    names = ("sizes", "start", "precision", "properties", "verify")
    return [f"{name}={own[name]}" for name in names if own[name] != plain[name]]


@dataclass
class Ledger:
    """Counts of a run."""

    seed: int
    verify: str = ""  # requested for all graphs; empty for a mixture
    target: str = ""
    graphs: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # counts by label
    defects: Counter[str] = field(default_factory=Counter)  # number of findings by defect
    next_first: int = 0  # first number without a chunk
    # Open chunks: first number -> next number to run, and end.
    open_chunks: dict[int, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def read(cls, directory: Path, *, seed: int, verify: str, target: str = "") -> Ledger:
        """Reads a directory's ledger, or creates one; ValueError for another seed or checks."""
        file = directory / "ledger.json"
        if not file.is_file():
            return cls(seed, verify, target)
        content = json.loads(file.read_text(encoding="utf-8"))
        content.setdefault("target", "")
        asked, kept = (
            (seed, verify, target),
            (content["seed"], content["verify"], content["target"]),
        )
        if asked != kept:
            got, has = (
                ", ".join(str(each) or "a mixture" for each in one) for one in (asked, kept)
            )
            raise ValueError(
                f"{directory}: a run must be resumed with the same seed, verify and target, got "
                f"{got}, it has {has}. Name another directory."
            )
        content["counts"] = Counter(content["counts"])
        content["defects"] = Counter(content["defects"])
        chunks = content["open_chunks"].items()
        content["open_chunks"] = {int(first): tuple(place) for first, place in chunks}
        return cls(**content)

    def take_chunk(self, size: int) -> int:
        """Opens a chunk, and returns its first number."""
        first, self.next_first = self.next_first, self.next_first + size
        self.open_chunks[first] = (first, self.next_first)
        return first

    def advance(self, chunk: int, number: int) -> None:
        """Records the next number of a chunk; closes the chunk at its end."""
        end = self.open_chunks[chunk][1]
        if number < end:
            self.open_chunks[chunk] = (number, end)
        else:
            del self.open_chunks[chunk]

    def add(self, labels: list[str], figures: Mapping[str, int], end: str) -> None:
        """Counts one graph."""
        self.graphs += 1
        self.counts.update(labels)
        self.counts.update({f"total: {name}": value for name, value in figures.items()})
        self.counts[f"end: {end}"] += 1

    def add_finding(self, finding: Finding) -> None:
        """Counts a finding."""
        self.defects[finding.defect] += 1

    def write(self, directory: Path) -> None:
        """Replaces ledger.json and summary.csv."""
        write_text(directory / "ledger.json", json.dumps(vars(self), indent=1, sort_keys=True))
        rows = [("graphs", self.graphs), ("seconds", round(self.seconds))]
        rows += sorted(self.counts.items())
        rows += [(f"defect: {name}", count) for name, count in self.defects.most_common()]
        with (
            draft_of(directory / "summary.csv") as draft,
            draft.open("w", newline="", encoding="utf-8") as file,
        ):
            csv.writer(file).writerows([("what", "count"), *rows])


_CHILD = "npu_compiler.fuzz.worker"
# Graphs per process, to limit the growth of memory.
_CHUNK = 400
# Time for the imports of a child before its first graph, on a busy machine.
_START_S = 600
_SAVE_S = 10.0
# Shrinking may take this share of a run's time; further findings are not shrunk.
_SHRINKING_SHARE = 0.35
_FIGURES = ("programs", "nodes", "lowered", "calls", "from_cache")


@dataclass(frozen=True)
class Limits:
    """Limits of a run."""

    count: int  # number of graphs, including earlier parts of the run
    seconds: float | None = None  # time of this part; None for no limit
    jobs: int = 1  # children at a time
    timeout_s: float = 120.0  # time of one graph
    shrink_s: float = 40.0  # time of shrinking one finding


def run(
    ledger: Ledger,
    directory: Path | None,
    limits: Limits,
    *,
    on_finding: Callable[[Finding], object],
    on_save: Callable[[Ledger], object],
) -> None:
    """Compares graphs from a ledger's position on, and updates the ledger.

    Ledger and findings.jsonl are kept in the directory, or nowhere. `on_finding` and, every ten
    seconds and at the end, `on_save` are called by one thread at a time.
    """
    state = _State(ledger, directory, limits, on_finding, on_save)
    for chunk in sorted(ledger.open_chunks):
        state.waiting.put(chunk)
    try:
        run_each(
            state.chunks(),
            state.work,
            jobs=limits.jobs,
            make_child=lambda: _make_child(limits.timeout_s),
        )
    finally:
        state.save()


def replay(graph: str, mode: str, timeout_s: float) -> tuple[str, str]:
    """Compares one graph of a finding separately; returns its result and details."""
    child = _make_child(timeout_s)
    child.give({"replay": [graph, mode]})
    result = child.answer()
    child.stop()
    return (
        _end_of(child) if result is None else (result["result"]["kind"], result["result"]["detail"])
    )


class _State:
    """The state of a run, shared by threads that each supervise one child."""

    def __init__(
        self,
        ledger: Ledger,
        directory: Path | None,
        limits: Limits,
        on_finding: Callable[[Finding], object],
        on_save: Callable[[Ledger], object],
    ) -> None:
        self.waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
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

    def chunks(self) -> Iterator[int]:
        """Yields chunks until the run is over."""
        while (chunk := self._take()) is not None:
            yield chunk

    def work(self, child: Child, chunk: int) -> None:
        """Runs a chunk; graphs that a child did not report run again when the run is resumed."""
        try:
            while chunk in self._ledger.open_chunks and not self._is_over():
                self._part(child, chunk, *self._ledger.open_chunks[chunk])
        except Exception:
            self._is_stopped = True
            raise

    def save(self) -> None:
        """Writes the ledger."""
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

    def _part(self, child: Child, chunk: int, first: int, end: int) -> None:
        """Runs numbers of a chunk in one process."""
        # Fixed when the child starts: after too much time in shrinking, findings are not shrunk.
        spent = self._shrinking_s / max(1.0, time.monotonic() - self._started)
        shrink_s = 0.0 if spent > _SHRINKING_SHARE * self._limits.jobs else self._limits.shrink_s
        child.give(
            {
                "seed": self._ledger.seed,
                "first": first,
                "end": end,
                "verify": self._ledger.verify,
                "target": self._ledger.target,
                "shrink_s": shrink_s,
            }
        )
        drawn: dict[str, Any] | None = None
        found: Finding | None = None
        is_open = False
        ended = time.monotonic()
        for line in child.answers():
            if "done" in line:
                break
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
                break
        child.stop()  # the next part has a fresh one
        self._report(found)  # shrinking was cut short
        if self._is_over() or found is not None:
            return
        if is_open and drawn is not None:
            kind, detail = _end_of(child)
            result = {"kind": kind, "detail": detail}
            self._report(self._end(chunk, drawn, result))
        elif chunk in self._ledger.open_chunks and drawn is None:
            raise RuntimeError(f"graph {first} was not drawn: {_end_of(child)[1]}")

    def _end(self, chunk: int, drawn: dict[str, Any], result: dict[str, Any]) -> Finding | None:
        """Counts the result of one graph."""
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


def _make_child(timeout_s: float) -> Child:
    return Child(_CHILD, timeout_s=timeout_s, start_s=_START_S)


def _end_of(child: Child) -> tuple[str, str]:
    """Returns the end of a process, as a finding's end and detail."""
    return ("hangs", "no result in time") if child.is_late else ("killed", child.end)
