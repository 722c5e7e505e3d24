"""The command ``npu-ops``: which module holds each subcommand."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from npu_runtime.commands import Subcommand, run_command

__all__ = ["main"]

_SUBCOMMANDS = {
    "conformance": Subcommand(
        "npu_ops.conformance.__main__", "compare npu with the CPU over torch's ops"
    ),
    "explain": Subcommand("npu_ops.variants.explain", "which kernel serves a call, and why"),
    "new": Subcommand("npu_ops.scaffold.command", "write a wheel with an op of your own"),
    "tune": Subcommand(
        "npu_ops.variants.tune", "measure program and host kernel for calls, and record it"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, see npu_runtime.commands."""
    return run_command("npu-ops", _SUBCOMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
