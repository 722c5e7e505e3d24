"""Autotuner: selects a program or the host kernel for each signature, and lists its choices."""

from __future__ import annotations

import importlib.metadata
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

import npu_runtime
from npu_ops import _C
from npu_ops.config import VARIANT_MODES, Settings, read_settings
from npu_ops.errors import OperatorInputError, OpsError
from npu_ops.fallback import host_pattern
from npu_ops.names import dotted_name
from npu_ops.variants.call import OpCall, OpProgram, TensorSpec
from npu_ops.variants.measurements import Measurement, Records

__all__ = ["Choice", "Decision", "Facts", "choices", "decide", "host_kernels", "set_variant_policy"]


# A program must be this much faster than the host kernel: smaller gains are within the noise of a
# measurement, and the host kernel gives the same results as the CPU.
_LEAST_GAIN = 1.05


@dataclass(frozen=True)
class Facts:
    """The facts that a decision depends on.

    Attributes:
        mode: `measured`, `program` or `host` (the setting NPU_OPS_VARIANT).
        host_pattern: the pattern that always sends the op to the host, or None.
        is_host_device: whether the device is the host's processor.
        measurement: the times of both variants for this call on this device, or None.
    """

    mode: str
    host_pattern: str | None
    is_host_device: bool
    measurement: Measurement | None


@dataclass(frozen=True)
class Decision:
    """The selected variant of a call.

    Attributes:
        variant: `program` or `host`.
        reason: one phrase for reports.
    """

    variant: str
    reason: str


def decide(facts: Facts) -> Decision:
    """Selects the variant of a call: settings first, then the record, then the device's rule."""
    if facts.host_pattern is not None:
        return Decision("host", f"NPU_FALLBACK_OPS has {facts.host_pattern!r}")
    if facts.mode != "measured":
        return Decision(facts.mode, f"NPU_OPS_VARIANT is {facts.mode!r}")
    measured = facts.measurement
    if measured is None:
        if facts.is_host_device:
            return Decision("host", "no record, and the device is the host processor")
        return Decision("host", "no record for this device")
    times = f"program {measured.program_us:.1f} us, host kernel {measured.host_us:.1f} us"
    if not measured.is_equal:
        return Decision("host", f"the program's result differs from the host kernel's ({times})")
    if measured.program_us * _LEAST_GAIN <= measured.host_us:
        return Decision("program", f"measured: {times}")
    return Decision("host", f"measured: {times}")


_logger = logging.getLogger(__name__)
_LISTED = 4096


@dataclass(frozen=True)
class Choice:
    """A recorded decision.

    Attributes:
        call: op, tensors and other arguments, as in `npu-ops explain`.
        variant: `program` or `host`.
        reason: reason for reports.
    """

    call: str
    variant: str
    reason: str


class Autotuner:
    """Decides once for each signature. One per process; tests create separate ones."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.records = Records(settings.records)
        self._made: OrderedDict[tuple[int, str], Choice] = OrderedDict()
        self._lock = threading.Lock()

    def resolve(self) -> None:
        """Registers the ops that may run as programs with the native side."""
        ops = _C.variant_ops()
        asking: set[str] = set()
        if self.settings.variants == "program":
            asking = set(ops)
        elif self.settings.variants == "measured":
            asking = self._with_measurements(ops)
        for op in ops:
            _C.set_active(op, op in asking and host_pattern(op) is None)
        _C.set_program_capacity(self.settings.programs)

    def _with_measurements(self, ops: Sequence[str]) -> set[str]:
        """Returns the ops with measurements that may favour programs."""
        devices = range(torch.accelerator.device_count())
        if any(self._measures_itself(index) for index in devices):
            return set(ops)
        measured = {
            call.partition(" ")[0]
            for name in {device_key(index) for index in devices}
            for call in self.records.calls(name)
        }
        return {op for op in ops if dotted_name(op) in measured}

    def _measures_itself(self, device_index: int) -> bool:
        given = self.settings.tune
        return given if given is not None else not is_host_device(device_index)

    def choose(
        self, op: str, arguments: Sequence[Any], device_index: int, needs_grad: bool
    ) -> OpProgram | None:
        """Decides for a call; returns its program, or None for the host kernel."""
        call = OpCall(op, tuple(_argument(value) for value in arguments), needs_grad)
        program: OpProgram | None = None
        decision = self.decide(call, device_index)
        if decision.variant == "host" and self._wants_measurement(call, device_index):
            try:
                _, program = self.tune(call, device_index=device_index)
            except npu_runtime.NpuError as refusal:
                decision = Decision("host", _brief(refusal))
            else:
                decision = self.decide(call, device_index)
        if decision.variant == "host":
            program = None
        elif program is None:
            try:
                program = build(call, device_index=device_index)
            except npu_runtime.NpuError as refusal:
                decision = Decision("host", _brief(refusal))
        self._note(str(call), device_index, decision)
        return program

    def decide(self, call: OpCall, device_index: int) -> Decision:
        """Applies the policy to the current facts of a call."""
        return decide(
            Facts(
                mode=self.settings.variants,
                host_pattern=host_pattern(call.op),
                is_host_device=is_host_device(device_index),
                measurement=self.records.find(device_key(device_index), str(call)),
            )
        )

    def _wants_measurement(self, call: OpCall, device_index: int) -> bool:
        # set_sync_debug_mode would blame the call for the measurement's synchronization.
        return (
            self.settings.variants == "measured"
            and torch.npu.get_sync_debug_mode() == 0  # type: ignore[attr-defined]
            and host_pattern(call.op) is None
            and self._measures_itself(device_index)
            and self.records.find(device_key(device_index), str(call)) is None
        )

    def tune(
        self, call: OpCall, *, device_index: int = 0, budget_s: float = 0.2
    ) -> tuple[Measurement, OpProgram]:
        """Measures both variants of a call, and records the result.

        Returns:
            The measurement, and the measured program.

        Raises:
            npu_runtime.NpuError: the call has no program.
        """
        from npu_ops.variants.measurements import measure

        program = build(call, device_index=device_index)
        with host_kernels():
            measured = measure(call, program, device_index=device_index, budget_s=budget_s)
        self.records.add(device_key(device_index), str(call), measured)
        return measured, program

    def _note(self, call: str, device_index: int, decision: Decision) -> None:
        _logger.info("%s: %s (%s)", call, decision.variant, decision.reason)
        with self._lock:
            self._made[device_index, call] = Choice(call, decision.variant, decision.reason)
            if len(self._made) > _LISTED:
                self._made.popitem(last=False)

    def made(self) -> tuple[Choice, ...]:
        """The latest decisions, oldest first."""
        with self._lock:
            return tuple(self._made.values())


def choices() -> tuple[Choice, ...]:
    """Returns the decisions for calls of this process, oldest first."""
    return autotuner().made() if _autotuner is not None else ()


def set_variant_policy(*, mode: str | None = None, tune: bool | None = None) -> None:
    """Changes the selection of variants in this process from now on.

    Args:
        mode: `measured`, `program` or `host` (`NPU_OPS_VARIANT`); None keeps the current mode.
        tune: whether signatures without a record are measured at their first call (`NPU_OPS_TUNE`);
            None keeps the current value.

    Raises:
        OperatorInputError: [bad-setting] for another mode.
    """
    if mode is not None and mode not in VARIANT_MODES:
        raise OperatorInputError(
            f"set_variant_policy: `mode` must be one of {', '.join(VARIANT_MODES)}, got {mode!r}. "
            "Choose one of these.",
            code="bad-setting",
        )
    current = autotuner()
    changes: dict[str, Any] = {}
    if mode is not None:
        changes["variants"] = mode
    if tune is not None:
        changes["tune"] = tune
    current.settings = replace(current.settings, **changes)
    _C.reset_choices()


@contextmanager
def host_kernels() -> Iterator[None]:
    """Runs this thread's ops on the host kernels within the block."""
    previous = _C.exchange_choosing(True)
    try:
        yield
    finally:
        _C.exchange_choosing(previous)


def build(call: OpCall, *, device_index: int = 0) -> OpProgram:
    """Builds the program of a call.

    Raises:
        OpsError: [no-builder] if no package that builds programs is installed.
        npu_runtime.NpuError: from the builder, if the call has no program.
    """
    return _builder()(call, device_index=device_index)


def device_key(device_index: int) -> str:
    """Returns the key of measurements: the hardware and the vendor's software."""
    info = npu_runtime.device_info(device_index)
    return f"{info.device} | {info.full_name} | {info.driver_version}"


def is_host_device(device_index: int) -> bool:
    """Whether the device computes on the host's processor, as the simulated one does."""
    info = npu_runtime.device_info(device_index)
    return info.device.startswith("CPU") or info.driver == "sim"


def autotuner() -> Autotuner:
    """Returns the process's autotuner, created with the current settings."""
    global _autotuner
    with _making:
        if _autotuner is None:
            _autotuner = Autotuner(read_settings())
        return _autotuner


@contextmanager
def temporary_autotuner(settings: Settings) -> Iterator[Autotuner]:
    """Replaces the process's autotuner within the block by a new one with these settings.

    The previous one is restored at the end; for tests.
    """
    global _autotuner
    made = Autotuner(settings)
    with _making:
        previous, _autotuner = _autotuner, made
    _C.reset_choices()
    try:
        yield made
    finally:
        with _making:
            _autotuner = previous
        _C.reset_choices()


def _builder() -> Callable[..., OpProgram]:
    found = sorted(importlib.metadata.entry_points(group="npu_ops.program_builders"))
    if not found:
        raise OpsError(
            "npu-compiler must be installed for programs of single ops, got none. Install its "
            "wheel: pip install dist/npu_compiler-*.whl.",
            code="no-builder",
        )
    return found[0].load()  # type: ignore[no-any-return]


def _argument(value: Any) -> Any:
    if isinstance(value, tuple) and value and value[0] == "tensor":
        _, dtype, shape, order = value
        return TensorSpec(_DTYPES[dtype], shape, order)
    return value


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


# Names of element types on the native side.
_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}

_autotuner: Autotuner | None = None
_making = threading.Lock()
