"""Runs each mutation against the tests that reach its line, and records the first that detects it.

A run of all tests with recorded hits gives the tests that reach a line; tests of the changed module
run first, then quick ones. A mutation is detected if a test fails that passes without it, or if the
tests exceed several times their usual duration.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from junit_report import read_cases
from mutations.draw import Mutation

FIRST = 25  # tests that run before the rest
GATE = "not long and not hardware"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """One mutation's result.

    Attributes:
        number: number of the mutation in its table.
        noticed_by: the failing test, or how the tests ended; empty if undetected.
        reached_by: tests that reach the line.
        is_complete: whether all of them ran within the budget.
        duration_s: seconds of all runs.
    """

    number: int
    noticed_by: str
    reached_by: int
    is_complete: bool
    duration_s: float


@dataclass(frozen=True)
class Gate:
    """The tree, interpreter and records of an instrumented run of the gate."""

    tree: Path
    python: Path
    table: Path
    hits: Path
    budget_s: float

    def judge_all(
        self, mutations: Sequence[Mutation], known: Mapping[int, str], out: Path
    ) -> list[Outcome]:
        """Judges mutations in parallel on all processors; writes each outcome.

        Args:
            mutations: mutations of the table.
            known: tests that detected them in an earlier run, tried first if still reached.
            out: path of a JSON file.
        """
        reached = read_hits(self.hits)
        durations_s = read_durations(self.tree)
        done: list[Outcome] = []

        def judge(mutation: Mutation) -> None:
            tests = self._ordered(mutation, reached[mutation.number], durations_s)
            first = known.get(mutation.number, "")
            if first in tests:
                tests = [first, *(test for test in tests if test != first)]
            done.append(self._judge(mutation, tests, durations_s))
            done.sort(key=lambda outcome: outcome.number)
            out.write_text(json.dumps([asdict(outcome) for outcome in done], indent=1) + "\n")

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(judge, mutations))
        return done

    def _ordered(
        self, mutation: Mutation, tests: set[str], durations_s: Mapping[str, float]
    ) -> list[str]:
        package = mutation.file.split("/")[1]
        known = [test for test in tests if test in durations_s]
        # A line that runs when its module is imported, or in processes that keep no record.
        if "import" in tests or not known:
            known = [test for test in durations_s if test.startswith(f"packages/{package}/")]
        inside = Path(mutation.file).parts[4:]
        folder = "/".join(("packages", package, "tests", *inside[:-1]))
        mirror = f"{folder}/test_{Path(mutation.file).stem}.py"

        def rank(test: str) -> tuple[bool, bool, bool, float]:
            apart = not test.startswith(f"packages/{package}/")
            return (
                not test.startswith(mirror),
                not test.startswith(folder + "/"),
                apart,
                durations_s[test],
            )

        return sorted(known, key=rank)

    def _judge(
        self, mutation: Mutation, tests: list[str], durations_s: Mapping[str, float]
    ) -> Outcome:
        start_s = time.monotonic()
        left, excluded = list(tests), set[str]()
        noticed, is_complete = "", True
        while left and not noticed:
            batch = left[: FIRST if len(left) == len(tests) else len(left)]
            budget_s = self.budget_s - (time.monotonic() - start_s)
            if budget_s <= 0:
                is_complete = False
                break
            usual_s = sum(durations_s[test] for test in batch)
            failed, ended = self._run(batch, mutation.number, min(budget_s, 60 + 4 * usual_s))
            if ended == "timeout" and 60 + 4 * usual_s <= budget_s:
                noticed = "the tests did not end"
            elif ended == "timeout":
                is_complete = False
                break
            elif ended in ("passed", "failed") and not failed:
                left = left[len(batch) :]
            elif not failed:
                noticed = f"pytest ended with {ended}"
            elif self._run([failed], None, 300)[1] == "passed":
                noticed = failed
            else:  # it also fails without the mutation, run separately
                excluded.add(failed)
                left = [test for test in left if test not in excluded]
        duration_s = round(time.monotonic() - start_s, 1)
        return Outcome(mutation.number, noticed, len(tests), is_complete, duration_s)

    def _run(self, tests: list[str], mutant: int | None, limit_s: float) -> tuple[str, str]:
        """Returns the first failing test, and passed, failed, timeout or an exit code."""
        environment = dict(os.environ, OMP_WAIT_POLICY="passive", NPU_MUTATIONS=str(self.table))
        environment.pop("NPU_MUTATION_HITS", None)
        if mutant is not None:
            environment["NPU_MUTANT"] = str(mutant)
        environment["PATH"] = f"{self.python.parent}:{environment['PATH']}"
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
            names.write("".join(f"{test}\n" for test in tests))
            names.flush()
            command = [self.python, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", "-m", GATE]
            process = subprocess.Popen(
                [*map(str, command), f"@{names.name}"],
                cwd=self.tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                text, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.communicate()
                return "", "timeout"
        found = _FAILED.findall(text)
        ended = {0: "passed", 1: "failed"}.get(process.returncode, str(process.returncode))
        return (found[0] if found else ""), ended


def read_hits(folder: Path) -> dict[int, set[str]]:
    """Returns the tests that reached the line of each mutation's number."""
    found: dict[int, set[str]] = defaultdict(set)
    for file in folder.iterdir():
        for line in file.read_text(errors="replace").splitlines():
            number, _, test = line.partition("\t")
            test = re.sub(r" \((?:setup|call|teardown)\)$", "", test)
            found[int(number)].add(test)
    return found


def read_durations(tree: Path) -> dict[str, float]:
    """Returns the seconds of each test of the gate's JUnit files, by its id."""
    found: dict[str, float] = {}
    for report in sorted((tree / "build" / "junit").glob("*.xml")):
        for case in read_cases(report):
            file = case.file.replace(".", "/")
            owner = [] if file.endswith(f"/{case.owner}") else [case.owner]
            found.setdefault("::".join([f"{file}.py", *owner, case.name]), case.duration_s)
    return found
