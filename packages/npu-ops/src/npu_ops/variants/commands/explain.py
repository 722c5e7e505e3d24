"""``npu-ops explain OP TENSOR ...``: shows the kernel of a call on this machine, and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from npu_command.output import give_answer
from npu_ops.variants.commands.call_arguments import read_arguments

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    options = read_arguments(
        "Show the kernel that serves a call on this machine, and why.", "npu-ops explain", arguments
    )
    from npu_ops.variants.call import parse_call  # late: help does not need torch
    from npu_ops.variants.explain import explain

    call = parse_call(options.op, options.arguments)
    result = explain(call, device_index=options.device)
    give_answer(options.json, asdict(result), lambda: print(result))
    return 0
