"""``npu-ops tune OP TENSOR ...``: measures both kernels of a call, and records the faster one.

``npu-ops tune --list`` lists the records.

New processes use the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from npu_command.output import give_answer
from npu_ops.errors import OperatorInputError
from npu_ops.names import dotted_name
from npu_ops.variants.commands.call_arguments import read_arguments

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code. Without an op, lists the records.

    Raises:
        npu_runtime.NpuError: the call has no program.
        OperatorInputError: [no-program] for an op that never runs as a program.
    """
    options = read_arguments(
        "Measure a call's program and its host kernel on this machine, and record the result.",
        "npu-ops tune",
        arguments,
        may_list=True,
    )
    if options.op is None:
        _give_records(options.json)
        return 0
    from npu_ops import _C  # late: help does not need torch
    from npu_ops.variants.autotune import autotuner, device_key
    from npu_ops.variants.call import parse_call
    from npu_ops.variants.explain import describe

    call = parse_call(options.op, options.arguments)
    if call.op not in _C.variant_ops():
        names = ", ".join(dotted_name(name) for name in _C.variant_ops())
        raise OperatorInputError(
            f"`{dotted_name(call.op)}` must be an op that can run as a program, got one that "
            f"never runs as a program. Choose among {names}.",
            code="no-program",
        )
    deciding = autotuner()
    measured, _ = deciding.tune(call, device_index=options.device, budget_s=1.0)
    decision = deciding.decide(call, options.device)
    text = (
        f"{call}\non {device_key(options.device)}\n{describe(measured)}\nfrom now on: "
        f"{decision.variant} ({decision.reason}); recorded in {deciding.records.path}"
    )
    document = {"call": str(call), **asdict(measured), **asdict(decision)}
    give_answer(options.json, document, lambda: print(text))
    return 0


def _give_records(place: Path | None) -> None:
    from npu_ops.variants.autotune import autotuner, device_key
    from npu_ops.variants.explain import describe

    key = device_key(0)
    records = autotuner().records
    calls = records.calls(key)

    def show() -> None:
        print(f"{len(calls)} calls measured on {key}, in {records.path}")
        for call, measured in calls.items():
            print(f"  {call}\n    {describe(measured)}")

    give_answer(place, {call: asdict(measured) for call, measured in calls.items()}, show)
