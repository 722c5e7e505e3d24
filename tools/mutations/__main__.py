"""Command line of the mutation tool: `nox -s mutations` runs its steps in order."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mutations.draw import draw, read, write
from mutations.instrument import install_hook, instrument
from mutations.judge import Gate, Outcome


def main() -> None:
    """Draws, instruments a copy of the repository, or judges."""
    parser = argparse.ArgumentParser(prog="mutations", description=__doc__)
    parser.add_argument("table", type=Path, help="drawn mutations, JSON")
    steps = parser.add_subparsers(dest="step", required=True)
    drawing = steps.add_parser("draw", help="draw a table")
    drawing.add_argument("--seed", type=int, default=35)
    drawing.add_argument("--count", type=int, default=80)
    preparing = steps.add_parser("instrument", help="put C++ switches into a copy of the tree")
    preparing.add_argument("tree", type=Path)
    hooking = steps.add_parser("hook", help="have an environment's interpreters import the hook")
    hooking.add_argument("site_packages", type=Path)
    judging = steps.add_parser("judge", help="run each mutation against the tests that reach it")
    judging.add_argument("tree", type=Path)
    judging.add_argument("python", type=Path)
    judging.add_argument("--hits", type=Path, required=True)
    judging.add_argument("--out", type=Path, required=True)
    judging.add_argument("--known", type=Path, help="outcomes of an earlier run")
    judging.add_argument("--budget-s", type=float, default=240)
    arguments = parser.parse_args()
    if arguments.step == "draw":
        write(arguments.table, draw(arguments.seed, arguments.count))
    elif arguments.step == "instrument":
        instrument(arguments.tree, read(arguments.table))
    elif arguments.step == "hook":
        install_hook(arguments.site_packages)
    else:
        _judge(arguments)


def _judge(arguments: argparse.Namespace) -> None:
    mutations = read(arguments.table)
    known: dict[int, str] = {}
    if arguments.known:
        rows = json.loads(arguments.known.read_text())
        known = {row["number"]: row["noticed_by"] for row in rows}
    gate = Gate(
        tree=arguments.tree.resolve(),
        python=arguments.python,
        table=arguments.table.resolve(),
        hits=arguments.hits,
        budget_s=arguments.budget_s,
    )
    outcomes = gate.judge_all(mutations, known, arguments.out)
    by_number: dict[int, Outcome] = {outcome.number: outcome for outcome in outcomes}
    for mutation in mutations:
        outcome = by_number[mutation.number]
        print(f"{mutation.number:3} {mutation.file}:{mutation.line} {mutation.operator}")
        print(f"      {outcome.noticed_by or 'not noticed'} ({outcome.reached_by} tests reach it)")
    noticed = sum(bool(outcome.noticed_by) for outcome in outcomes)
    print(f"{noticed} of {len(outcomes)} noticed")


if __name__ == "__main__":
    main()
