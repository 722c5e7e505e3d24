"""``python -m npu_compiler.suite.random_graphs``: compares random graphs with eager."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from npu_compiler.suite.random_graphs.graph import RandomGraph
from npu_compiler.suite.random_graphs.supervision import Finding, Tally, replay, run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npu_compiler.suite.random_graphs",
        description="Compiles small random graphs and compares them with eager. Exit code 1 when "
        "one differs, raises, or ends its process.",
    )
    parser.add_argument("--count", type=int, default=5000, metavar="N", help="default: 5000")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes")
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds per graph")
    parser.add_argument("--findings", type=Path, metavar="FILE", help="where to write all of them")
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="the graphs of a file of findings, each alone"
    )
    return parser


def _show(finding: Finding) -> None:
    print(f"{finding.detail} [{finding.device}]")
    if finding.graph:
        print(RandomGraph.from_json(finding.graph).program_text())
    print(flush=True)


def _replay(file: Path, timeout_s: float) -> int:
    differing = 0
    for line in file.read_text(encoding="utf-8").splitlines():
        device, graph, _ = line.split("\t")
        end = replay(graph, device, timeout_s)
        if end is not None:
            differing += 1
            _show(Finding(end, graph, device))
    print(f"{differing} graphs still differ")
    return 1 if differing else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.replay is not None:
        return _replay(arguments.replay, arguments.timeout)
    if importlib.util.find_spec("hypothesis") is None:
        parser.error('the graphs are drawn by hypothesis; pip install "hypothesis>=6.100"')
    file = arguments.findings.open("w", encoding="utf-8") if arguments.findings else None

    def report(finding: Finding) -> None:
        _show(finding)
        if file is not None and finding.graph:
            detail = finding.detail.replace("\t", " ")
            print(finding.device, finding.graph, detail, sep="\t", file=file, flush=True)

    def progress(tally: Tally) -> None:
        print(f"{tally.graphs:,} graphs, {len(tally.findings)} findings", file=sys.stderr)

    tally = run(
        arguments.count,
        seed=arguments.seed,
        jobs=max(1, arguments.jobs),
        timeout_s=arguments.timeout,
        on_finding=report,
        on_batch=progress,
    )
    if file is not None:
        file.close()
    print(
        f"{tally.graphs:,} graphs, seed {arguments.seed}: {tally.programs:,} programs, "
        f"{tally.lowered:,} of {tally.nodes:,} nodes lowered, {len(tally.findings)} to mend"
    )
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
