"""Explanation of the kernel selected for a call on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import npu_runtime
from npu_ops import _C
from npu_ops.variants.autotune import Autotuner, Decision, autotuner, build, device_key
from npu_ops.variants.call import OpCall, TensorSpec
from npu_ops.variants.measurements import Measurement

__all__ = ["Explanation", "describe", "explain"]


@dataclass(frozen=True)
class Explanation:
    """The kernel selected for a call, and the facts behind the choice.

    Attributes:
        call: op, tensors and other arguments.
        device: name, processor and driver of the device.
        variant: `program`, `host`, or `native` for an op that has only an npu kernel.
        reason: reason for the choice.
        program: `possible`, or the reason that the call has no program.
        size_bytes: size of the tensor arguments.
        flops: FLOPs of the call, if torch counts them.
        measurement: times of both variants, or None.
    """

    call: str
    device: str
    variant: str
    reason: str
    program: str
    size_bytes: int
    flops: int | None
    measurement: Measurement | None

    def __str__(self) -> str:
        rows = [
            ("call", self.call),
            ("device", self.device),
            ("served by", f"{_BODIES[self.variant]}: {self.reason}"),
            ("a program", self.program),
            ("arguments", f"{self.size_bytes:,} bytes"),
        ]
        if self.flops is not None:
            rows.append(("work", f"{self.flops:,} FLOPs"))
        if self.measurement is not None:
            rows.append(("measured", describe(self.measurement)))
        elif self.program == "possible":
            rows.append(("measured", f"not yet; npu-ops tune {self.call}"))
        return "\n".join(f"{name:10}  {value}" for name, value in rows)


_BODIES = {
    "program": "a program",
    "host": "the host kernel",
    "native": "a native kernel",
}


def describe(measured: Measurement) -> str:
    """Returns a phrase with both times, their ratio and the largest difference."""
    return (
        f"program {measured.program_us:.1f} us, host kernel {measured.host_us:.1f} us "
        f"({measured.host_us / measured.program_us:.2f}x), "
        f"largest difference {measured.largest_error:.1e}"
        f"{'' if measured.is_equal else ', which is not rounding'}"
    )


def explain(call: OpCall, *, device_index: int = 0, using: Autotuner | None = None) -> Explanation:
    """Explains which kernel a call would use now, without running it.

    Args:
        call: result of parse_call, or another call.
        device_index: index of the npu device.
        using: autotuner whose settings and records to use; by default the process's.

    Raises:
        OperatorInputError: [op-arguments] if torch refuses the arguments.
    """
    deciding = using or autotuner()
    key = device_key(device_index)
    results = call.results()
    if call.op not in _C.variant_ops():
        decision, program = _without_program(call), "not offered for this op"
    else:
        decision = deciding.decide(call, device_index)
        try:
            build(call, device_index=device_index)
            program = "possible"
        except npu_runtime.NpuError as refusal:
            program = " ".join(str(refusal).split())
            if decision.variant == "program":
                decision = Decision("host", "no program can compute the call")
    return Explanation(
        call=str(call),
        device=key,
        variant=decision.variant,
        reason=decision.reason,
        program=program,
        size_bytes=sum(spec.size_bytes for spec in call.tensors),
        flops=_flops(call, results),
        measurement=deciding.records.find(key, str(call)),
    )


def _without_program(call: OpCall) -> Decision:
    if torch._C._dispatch_has_kernel_for_dispatch_key(call.op, "PrivateUse1"):
        if _C.has_host_kernel(call.op):
            return Decision("host", "the op never runs as a program")
        return Decision("native", "the op never runs as a program or on the host")
    if torch._C._dispatch_has_kernel_for_dispatch_key(call.op, "CompositeImplicitAutograd"):
        return Decision("host", "torch composes it of other ops; ask about those")
    return Decision("host", "an op of another library, or one that torch has for no CPU")


def _flops(call: OpCall, results: Any) -> int | None:
    from torch.utils.flop_counter import flop_registry

    count = flop_registry.get(call.overload().overloadpacket)
    if count is None:
        return None
    positional, named = call.split(
        [
            torch.empty(value.shape, device="meta") if isinstance(value, TensorSpec) else value
            for value in call.arguments
        ]
    )
    return int(count(*positional, **named, out_val=results))
