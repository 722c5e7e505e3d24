"""``python -m npu_ops.op_conformance.record``: records the calls of networks.

It needs transformers; the checks do not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from npu_ops.op_conformance.models import RECORDED
from npu_ops.op_conformance.models.recording import Recording, known_networks, record_network

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    known = known_networks()
    parser = argparse.ArgumentParser(
        prog="python -m npu_ops.op_conformance.record",
        description="Runs a training step of each network on the CPU, two layers of it, and writes "
        "down every call of an op, once.",
    )
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="(default: all)")
    parser.add_argument("-o", "--output", type=Path, default=RECORDED, metavar="FILE")
    arguments = parser.parse_args(argv)
    for name in arguments.networks:
        if name not in known:
            parser.error(f"NETWORK must be one of {', '.join(known)}, got {name!r}")
    recording = Recording()
    for name in arguments.networks or known:
        record_network(recording, name, known[name])
        count = sum(map(len, recording.calls.values()))
        print(f"{name}: {count:,} calls so far", file=sys.stderr)
    arguments.output.write_text(recording.text(), encoding="utf-8")
    print(f"{len(recording.networks)} networks, {arguments.output.stat().st_size:,} bytes")
    for reason, count in sorted(recording.left_out.items()):
        print(f"left out: {reason}: {count:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
