"""The decision between program and host kernel: facts in, decision with its reason out.

It touches no device and reads no settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_ops.variants.records import Measurement

__all__ = ["Decision", "Facts", "decide"]

# A program must be this much faster than the host kernel: less is within the noise of a
# measurement, and the host kernel is what the user's CPU results are compared with.
_LEAST_GAIN = 1.05


@dataclass(frozen=True)
class Facts:
    """What a decision depends on.

    Attributes:
        mode: `measured`, `program` or `host` (the setting NPU_OPS_VARIANT).
        host_pattern: the pattern that sends the op to the host in any case, or None.
        is_host_device: whether the device is the host's own processor.
        measurement: both bodies' times for this call on this device, or None.
    """

    mode: str
    host_pattern: str | None
    is_host_device: bool
    measurement: Measurement | None


@dataclass(frozen=True)
class Decision:
    """Which body serves a call.

    Attributes:
        variant: `program` or `host`.
        reason: one phrase, for people.
    """

    variant: str
    reason: str


def decide(facts: Facts) -> Decision:
    """Returns which body serves a call: settings first, then the record, then the device's rule."""
    if facts.host_pattern is not None:
        return Decision("host", f"NPU_FALLBACK_OPS has {facts.host_pattern!r}")
    if facts.mode != "measured":
        return Decision(facts.mode, f"NPU_OPS_VARIANT is {facts.mode!r}")
    measured = facts.measurement
    if measured is None:
        if facts.is_host_device:
            return Decision("host", "no record, and the device is the host's own processor")
        return Decision("host", "no record for this device")
    times = f"program {measured.program_us:.1f} us, host kernel {measured.host_us:.1f} us"
    if not measured.is_equal:
        return Decision("host", f"the program's result differs from the host kernel's ({times})")
    if measured.program_us * _LEAST_GAIN <= measured.host_us:
        return Decision("program", f"measured: {times}")
    return Decision("host", f"measured: {times}")
