"""Sessions about the tests: their durations, and the share of mutations that they detect."""

from __future__ import annotations

import shutil
import sys

import nox

from sessions.repository import BUILD, ROOT

__all__ = ["durations", "mutations"]


@nox.session(venv_backend="none")
def durations(session: nox.Session) -> None:
    """Print the durations of the last `nox -s tests` (`-- --most 20`)."""
    script = str(ROOT / "tools" / "durations.py")
    session.run(sys.executable, script, *session.posargs, external=True)


@nox.session
def mutations(session: nox.Session) -> None:
    """Count drawn faults that the tests detect (`-- --seed 35 --count 80`); takes over an hour.

    Works on a clone of HEAD in build/mutations: draws faults, compiles those in C++ with switches,
    runs all tests once to record the lines they reach, and then these tests for each fault.
    """
    session.install("cosmic-ray>=8.7,<9", "nox")
    place = BUILD / "mutations"
    tree, table, hits = place / "tree", place / "table.json", place / "hits"
    shutil.rmtree(place, ignore_errors=True)
    hits.mkdir(parents=True)
    session.run("git", "clone", "--quiet", str(ROOT), str(tree), external=True)
    tool = ("python", "-m", "mutations", str(table))
    path = {"PYTHONPATH": str(ROOT / "tools")}
    session.run(*tool, "draw", *session.posargs, env=path)
    session.run(*tool, "instrument", str(tree), env=path)
    gate = ("python", "-m", "nox", "-f", str(tree / "noxfile.py"), "-s")
    session.run(*gate, "tests(npu-profiler)", "--", "--collect-only", "-q", silent=True)
    python = tree / ".nox" / "platform" / "bin" / "python"
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    session.run(*tool, "hook", str(packages), env=path)
    recorded = {"NPU_MUTATIONS": str(table), "NPU_MUTATION_HITS": str(hits)}
    session.run(*gate, "tests", env=recorded, success_codes=(0, 1))
    out = ("--hits", str(hits), "--out", str(place / "outcomes.json"))
    session.run(*tool, "judge", str(tree), str(python), *out, env=path)
