"""What a run of random graphs has done so far, on disk: a stopped run is resumed from it.

A directory holds ledger.json (the seed, counts, where each chunk of numbers stands), summary.csv
(the counts) and findings.jsonl (one line per graph that did not end as eager does).
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from npu_command.whole_files import draft_of, write_text
from npu_compiler.suite.random_graphs.graph import RandomGraph
from npu_compiler.suite.random_graphs.inputs import FLOAT_EDGES
from npu_compiler.suite.random_graphs.modes import Mode

__all__ = ["Finding", "Ledger", "signature"]


@dataclass(frozen=True)
class Finding:
    """A graph that did not end as eager does.

    Attributes:
        number: of the graph, in the run's seed.
        kind: what the graph is for, as draw_graph says.
        end: "differs", "silent", "raises", "killed" or "hangs".
        detail: what differs, the error, or the signal.
        graph, mode: as drawn.
        smaller, simpler: as shrunk; empty where there was no time, or the process ended.
    """

    number: int
    kind: str
    end: str
    detail: str
    graph: str
    mode: str
    smaller: str = ""
    simpler: str = ""

    @property
    def defect(self) -> str:
        """What findings of one cause have in common, as far as can be seen from outside."""
        return signature(
            self.end,
            self.detail,
            RandomGraph.from_json(self.smaller or self.graph),
            Mode.from_json(self.simpler or self.mode),
        )


def signature(end: str, detail: str, graph: RandomGraph, mode: Mode) -> str:
    """Returns one line for graphs that end wrongly in one way, by the same calls."""
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
    """Counts of a run.

    Attributes:
        seed: of the run.
        verify: as asked for all graphs; empty for a mixture.
        target: likewise.
        graphs: compared.
        counts: of all that is counted, by its label.
        defects: findings by what they have in common.
        next_first: the first number that no chunk has taken.
        open_chunks: first number -> the next one to run, and the chunk's end, while these differ.
        seconds: that the run has taken.
    """

    seed: int
    verify: str = ""
    target: str = ""
    graphs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    defects: Counter[str] = field(default_factory=Counter)
    next_first: int = 0
    open_chunks: dict[int, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def read(cls, directory: Path, *, seed: int, verify: str, target: str = "") -> Ledger:
        """The ledger of a directory, or a new one.

        Raises:
            ValueError: the directory's run has another seed or checks otherwise.
        """
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
                f"{directory}: a run is resumed with its own seed, verify and target; got {got}, "
                f"it has {has}. Name another directory."
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
        """Notes the next number to run of a chunk; at its end it is closed."""
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
        """Counts what a graph that did not end well has shown."""
        self.defects[finding.defect] += 1

    def write(self, directory: Path) -> None:
        """Puts ledger.json and summary.csv in the place of older ones."""
        write_text(directory / "ledger.json", json.dumps(vars(self), indent=1, sort_keys=True))
        rows = [("graphs", self.graphs), ("seconds", round(self.seconds))]
        rows += sorted(self.counts.items())
        rows += [(f"defect: {name}", count) for name, count in self.defects.most_common()]
        with (
            draft_of(directory / "summary.csv") as draft,
            draft.open("w", newline="", encoding="utf-8") as file,
        ):
            csv.writer(file).writerows([("what", "count"), *rows])
