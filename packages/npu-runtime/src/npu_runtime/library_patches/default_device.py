"""Chooses the default device of other libraries, with the reason."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from npu_runtime import npu
from npu_runtime.config import RuntimeConfig, config, variables
from npu_runtime.errors import NpuError
from npu_runtime.info import DeviceInfo, device_info

__all__ = ["DefaultDevice", "decide", "picks_npu"]

_logger = logging.getLogger(__name__)
_TESTED = "TRANSFORMERS_TEST_DEVICE"
_said: set[tuple[str, bool]] = set()


@dataclass(frozen=True)
class DefaultDevice:
    """Whether npu is the default device, and the reason as a clause."""

    is_npu: bool
    reason: str


def decide(
    settings: RuntimeConfig,
    *,
    is_in_use: bool,
    serving: Callable[[], DeviceInfo | None],
    tested: str = "",
) -> DefaultDevice:
    """Chooses the default device of a program.

    A process that used npu has chosen it. `serving` is called only if nothing else decides, because
    it opens the driver; `tested` is the device given to transformers' tests.
    """
    if settings.auto:
        return DefaultDevice(True, "NPU_AUTO=1 requests it")
    if is_in_use:
        return DefaultDevice(True, "this process uses it already")
    if tested.partition(":")[0] == "npu":
        return DefaultDevice(True, f"{_TESTED}={tested} names it")
    if settings.auto is False:
        return DefaultDevice(False, "NPU_AUTO=0 leaves npu out")
    # A requested device that is absent is an error at its first use; it is not replaced.
    for name, value in (("NPU_DEVICE", settings.device), ("NPU_DRIVER", settings.driver)):
        if value:
            return DefaultDevice(True, f"{name}={value} requests it")
    device = serving()
    if device is None:
        return DefaultDevice(False, "no device can serve as npu")
    if device.driver == "openvino" and device.device.startswith("CPU"):
        return DefaultDevice(False, f"{device.reason}; NPU_AUTO=1 chooses npu")
    return DefaultDevice(True, device.reason)


def picks_npu(subject: str = "Hugging Face's libraries run") -> bool:
    """Whether npu is the default device; logs the choice and the reason once."""
    tested = variables(_TESTED).get(_TESTED, "")
    choice = decide(config, is_in_use=npu.is_initialized(), serving=_serving, tested=tested)
    if (subject, choice.is_npu) not in _said:
        _said.add((subject, choice.is_npu))
        other = "cuda" if torch.cuda.is_available() else "the CPU"
        _logger.warning(
            "npu: %s on %s where no device is named: %s",
            subject,
            "npu" if choice.is_npu else other,
            choice.reason,
        )
    return choice.is_npu


def _serving() -> DeviceInfo | None:
    try:
        return device_info()
    except NpuError:  # no device, or a wrong setting, which the import of torch has reported
        return None
