"""Draws, makes and judges malformed calls; prints findings, and exits with 1 if there are any."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from malformed.drawing import Batch, Call, draw_calls, draw_commands
from malformed.entry_points import commands, entry_points, variables
from malformed.files import write_files
from malformed.making import Maker
from malformed.verdict import Outcome, codes, finding_of_call, finding_of_command

_COMMANDS_SHARE = 10  # one call of so many is a command's
_RUN_PROGRAMS = {
    "npu-compiler explain",
    "npu-compiler tune",
    "npu-ops monitor",
    "npu-ops run",
    "npu-profiler trace",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m malformed", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=40, help="calls of a process")
    parser.add_argument("--patience", type=float, default=60.0, metavar="S", help="for a call")
    parser.add_argument("--only", default="", help="entry points whose name begins so")
    parser.add_argument("--json", type=Path, help="write counts and findings there")
    given = parser.parse_args()
    entries = [one for one in entry_points() if str(one).startswith(given.only)]
    table = [one for one in commands() if str(one).startswith(given.only)]
    if not (entries or table):
        parser.error(f"no entry point begins with {given.only}")
    of_commands = given.count // _COMMANDS_SHARE if entries else given.count
    of_commands *= bool(table)
    batches: list[Batch] = []
    if entries:
        batches += draw_calls(
            entries,
            variables(),
            count=given.count - of_commands,
            size=given.batch,
            first_seed=given.seed,
        )
    if table:
        batches += draw_commands(table, variables(), count=of_commands, first_seed=given.seed)
    listed = codes()
    counts: Counter[str] = Counter()
    findings: list[dict[str, object]] = []

    def judge(call: Call, outcome: Outcome, batch: Batch) -> None:
        if call.entry is None:
            programs = call.words if call.subject in _RUN_PROGRAMS else None
            found = finding_of_command(outcome, programs)
        else:
            found = finding_of_call(call.subject, outcome, listed, is_kind_wrong=call.is_kind_wrong)
        kind = "commands" if call.entry is None else "calls"
        counts[f"{call.package} {kind}"] += 1
        counts[f"ended: {outcome.kind}"] += 1
        if outcome.kind == "skipped":
            counts[f"skipped: {call.subject}: {outcome.error[0]}: {outcome.text[:80]}"] += 1
        if found is not None:
            finding = {
                "call": str(call)[:500],
                "environment": dict(batch.environment),
                "finding": found,
                "text": outcome.text[-1500:],
                "place": outcome.place,
            }
            findings.append(finding)
            print(json.dumps(finding), flush=True)

    with tempfile.TemporaryDirectory(prefix="malformed-") as place:
        files = Path(place) / "files"
        write_files(files)
        Maker(files, Path(place), jobs=given.jobs, patience_s=given.patience).make(batches, judge)
    report = {"entry_points": len(entries), "commands": len(table), "counts": counts}
    print(json.dumps(report, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps({**report, "findings": findings}, indent=1))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
