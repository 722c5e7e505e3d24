"""``python -m npu_compiler.fuzz``: compares random graphs with eager."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_compiler.fuzz.graph import RandomGraph
from npu_compiler.fuzz.modes import Mode, reproducer
from npu_compiler.fuzz.supervision import Finding, Ledger, Limits, replay, run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npu_compiler.fuzz",
        description="Compiles small random graphs and compares them with eager. Exit code 1 if "
        "one differs, raises, or crashes its process.",
    )
    parser.add_argument("--count", type=int, default=5000, metavar="N", help="default: 5000")
    parser.add_argument("--seconds", type=float, metavar="S", help="end after this time")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="parallel processes"
    )
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds per graph")
    parser.add_argument(
        "--shrink", type=float, default=40, metavar="S",
        help="seconds to shrink a finding (default: 40; 0 to skip)",
    )  # fmt: skip
    parser.add_argument(
        "--verify", choices=("off", "first", "always"), default="",
        help='as in CompilerConfig; by default "first" for one graph of twelve, "off" for others',
    )  # fmt: skip
    parser.add_argument(
        "--target", default="",
        help='as in CompilerConfig; by default "kernels" for one graph of four, "openvino" for '
        "others",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="folder of counts and findings; continues from existing ones",
    )  # fmt: skip
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="compare the graphs of a findings.jsonl, one by one",
    )
    return parser


def _show(finding: Finding) -> None:
    print(f"# graph {finding.number} ({finding.kind}) {finding.end}: {finding.detail}")
    graph = RandomGraph.from_json(finding.smaller or finding.graph)
    print(reproducer(graph, Mode.from_json(finding.simpler or finding.mode)), end="\n\n")
    sys.stdout.flush()


def _replay(file: Path, timeout_s: float) -> int:
    differing = 0
    for line in file.read_text(encoding="utf-8").splitlines():
        finding = Finding(**json.loads(line))
        end, detail = replay(finding.graph, finding.mode, timeout_s)
        if end != "equal":
            differing += end != "invalid"
            print(f"# graph {finding.number} ({finding.kind}) {end}: {detail}")
    print(f"{differing} graphs still differ")
    return 1 if differing else 0


def _end_of_process(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.replay is not None:
        return _replay(arguments.replay, arguments.timeout)
    ledger = Ledger(arguments.seed, arguments.verify, arguments.target)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        try:
            ledger = Ledger.read(
                arguments.out,
                seed=arguments.seed,
                verify=arguments.verify,
                target=arguments.target,
            )
        except ValueError as error:
            parser.error(str(error))

    def progress(current: Ledger) -> None:
        found = sum(current.defects.values())
        print(f"{current.graphs:,} graphs, {found} findings", file=sys.stderr)

    limits = Limits(
        count=arguments.count,
        seconds=arguments.seconds,
        jobs=max(1, arguments.jobs),
        timeout_s=arguments.timeout,
        shrink_s=arguments.shrink,
    )
    signal.signal(signal.SIGTERM, _end_of_process)
    is_stopped = False
    try:
        run(ledger, arguments.out, limits, on_finding=_show, on_save=progress)
    except KeyboardInterrupt:
        is_stopped = True
    for name, count in ledger.defects.most_common():
        print(f"{count:6,}  {name}")
    print(
        f"{ledger.graphs:,} graphs, seed {arguments.seed}, {ledger.counts['total: calls']:,} "
        f"calls, {ledger.counts['total: programs']:,} programs, "
        f"{ledger.counts['total: lowered']:,} of {ledger.counts['total: nodes']:,} nodes lowered, "
        f"{sum(ledger.defects.values()):,} findings of {len(ledger.defects)} kinds"
    )
    if is_stopped:
        return 130
    return 1 if ledger.defects else 0


if __name__ == "__main__":
    sys.exit(main())
