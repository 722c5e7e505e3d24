"""``python -m npu_ops.op_conformance.fuzz``: runs random calls of aten ops and prints failures."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from npu_ops.op_conformance.fuzz.call import is_excluded
from npu_ops.op_conformance.fuzz.supervision import Finding, make_alone, make_child, run_tasks

_LEAST = 5  # calls per op: hypothesis draws the simplest one first
_NAMESPACE = "aten::"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npu_ops.op_conformance.fuzz",
        description="Calls the aten ops that have a CPU kernel with random arguments, on npu and "
        "on the CPU. Exit code 1 when npu ends the process or ends otherwise than the CPU.",
    )
    parser.add_argument("--calls", type=int, default=20_000, metavar="N", help="default: 20000")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--filter", default="", metavar="TEXT", help="ops that contain TEXT, or one of A,B"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes")
    parser.add_argument("--timeout", type=float, default=30, metavar="S", help="seconds per step")
    parser.add_argument("--findings", type=Path, metavar="FILE", help="where to write all of them")
    parser.add_argument("--replay", metavar="CALL", help="one call as a finding shows it, alone")
    return parser


def op_names(text: str = "") -> list[str]:
    """Returns the aten ops that have a CPU kernel and are not excluded, sorted."""
    return sorted(
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(_NAMESPACE)
        and any(part in name for part in text.split(","))
        and not is_excluded(name)
        and torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU")
    )


def _tasks(names: Sequence[str], calls: int, seed: int) -> list[dict[str, Any]]:
    """Distributes calls equally over ops, or over a sample of ops if there are too few calls."""
    each = max(_LEAST, math.ceil(calls / len(names)))
    order = random.Random(seed).sample(names, len(names))
    return [
        {"op": op, "calls": each, "seed": seed, "skip": 0}
        for op in order[: math.ceil(calls / each)]
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.replay:
        for where in ("cpu", "npu"):
            print(f"{where}: {make_alone(make_child(arguments.timeout), arguments.replay, where)}")
        return 0
    if importlib.util.find_spec("hypothesis") is None:
        parser.error('the calls are drawn by hypothesis; pip install "hypothesis>=6.100"')
    names = op_names(arguments.filter)
    if not names:
        parser.error("no op is left to call; widen --filter")
    file = arguments.findings.open("w", encoding="utf-8") if arguments.findings else None

    def report(finding: Finding) -> None:
        if finding.is_ours:
            print(f"{finding.kind.upper()}  {finding.op}: {finding.detail}\n    {finding.call}")
        if file is not None:
            print(finding.kind, finding.op, finding.detail, finding.call, sep="\t", file=file)
            file.flush()

    tally = run_tasks(
        _tasks(names, arguments.calls, arguments.seed),
        jobs=max(1, arguments.jobs),
        timeout_s=arguments.timeout,
        on_finding=report,
    )
    if file is not None:
        file.close()
    for end, count in tally.ends.most_common():
        print(f"{count:>9,}  {end} on the CPU")
    kinds = Counter(finding.kind for finding in tally.findings)
    for kind, count in kinds.most_common():
        print(f"{count:>9,}  {kind}")
    ours = sum(finding.is_ours for finding in tally.findings)
    print(f"{tally.calls:,} calls of {len(names):,} ops, seed {arguments.seed}: {ours} to fix")
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
