"""Devices of ``torch.npu``: count, current device and properties."""

import operator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from npu_runtime import _C, sensors
from npu_runtime.errors import InputError

__all__ = [
    "DeviceLike",
    "DeviceProperties",
    "can_device_access_peer",
    "clock_rate",
    "current_device",
    "device",
    "device_count",
    "device_index",
    "device_memory_used",
    "device_of",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "ipc_collect",
    "is_available",
    "is_initialized",
    "set_device",
    "synchronize",
    "utilization",
]

DeviceLike = torch.device | str | int | None

_initialized = False


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of a device.

    Attributes:
        name: the product name.
        total_memory: usable memory in bytes.
        driver: its driver.
        driver_version: version of the vendor's software.
        capabilities: the dtypes that the vendor reports.
    """

    name: str
    total_memory: int
    driver: str
    driver_version: str
    capabilities: tuple[str, ...]


def is_available() -> bool:
    """Whether a device is available. Opens the driver on first use; never raises."""
    return _C.device_count() > 0


def device_count() -> int:
    """Returns the number of npu devices; 0 if no driver can be opened."""
    return _C.device_count()


def init() -> None:
    """Opens the driver now instead of at first use.

    Afterwards, forked children cannot use the device.

    Raises:
        DeviceError: no device is available (code ``device-absent``), or this process was forked
            after its parent used the device (``forked-after-use``).
    """
    global _initialized
    _C.use_device()
    _C.synchronize(_C.current_device())
    _initialized = True


def _lazy_init() -> None:
    if not _initialized or _C.is_in_bad_fork():
        init()


def is_initialized() -> bool:
    """Whether the device is initialized, explicitly or on demand, and usable."""
    return _initialized and not _C.is_in_bad_fork()


def _is_in_bad_fork() -> bool:
    """Whether this process was forked after its parent used the device.

    Such a child inherits memory without the threads behind it; work could block forever.
    """
    return _C.is_in_bad_fork()


def current_device() -> int:
    """Index of this thread's current device."""
    _lazy_init()
    return _C.current_device()


def set_device(device: DeviceLike) -> None:
    """Sets this thread's current device; None has no effect."""
    index = device_index(device, optional=True)
    if index >= 0:
        _C.set_device(index)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all work on a device, with the GIL released."""
    _C.synchronize(device_index(device))


def ipc_collect() -> None:
    """Does nothing: tensors are copied to other processes, so no memory is held for them."""


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """True for any two devices: all share the machine's memory.

    Raises:
        InputError: one of them is not an npu device (code ``device-type``).
        DeviceError: one of them does not exist (code ``device-index``).
    """
    for index in (device_index(device), device_index(peer_device)):
        _C.synchronize(index)
    return True


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Returns the properties of a device."""
    raw = _C.device_properties(device_index(device))
    return DeviceProperties(
        name=raw["full_name"].strip(),
        total_memory=raw["memory_bytes"],
        driver=raw["driver"],
        driver_version=raw["driver_version"],
        capabilities=tuple(raw["capabilities"].split()),
    )


def get_device_name(device: DeviceLike = None) -> str:
    """Returns the product name."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[str, ...]:
    """Returns the dtypes that the vendor reports, for example ``("FP32", "BF16", "INT8")``."""
    return get_device_properties(device).capabilities


def utilization(device: DeviceLike = None) -> int:
    """Returns the NPU's utilization by all processes, in percent; takes 0.2 s.

    Raises:
        DeviceError: the kernel has no sensor of this device (code ``sensor-absent``), as in the
            next two.
    """
    return sensors.busy_percent(device_index(device))


def clock_rate(device: DeviceLike = None) -> int:
    """Returns the NPU's clock in MHz; 0 in sleep mode."""
    return sensors.clock_rate_mhz(device_index(device))


def device_memory_used(device: DeviceLike = None) -> int:
    """Returns the host memory held by the NPU's driver for all processes, in bytes."""
    return sensors.memory_used_bytes(device_index(device))


def device_index(device: DeviceLike, *, optional: bool = False) -> int:
    """Returns the index of a device in any of torch's forms.

    Args:
        device: a ``torch.device``, its name, an index, or None for the current device.
        optional: return -1, not the current device, when no index was given.

    Raises:
        InputError: it is not an npu device (code ``device-type``).
    """
    if isinstance(device, str):
        device = _parsed(device)
    if isinstance(device, torch.device):
        if device.type != "npu":
            raise InputError(
                f'torch.npu: `device` must be an npu device, got "{device}". '
                'Pass "npu", "npu:0" or an index.',
                code="device-type",
            )
        device = device.index
    if device is None:
        return -1 if optional else _C.current_device()
    try:
        index = operator.index(device)
    except (TypeError, RuntimeError):  # RuntimeError: a tensor of several numbers
        raise _no_device(device) from None
    if not -_INDEX_BOUND <= index < _INDEX_BOUND:
        raise _no_device(device)
    return index


# Native code holds an index in 8 bits, and reports absent devices itself.
_INDEX_BOUND = 128


def _parsed(name: str) -> torch.device:
    try:
        return torch.device(name)
    except (RuntimeError, UnicodeError):
        raise _no_device(name) from None


def _no_device(given: object) -> InputError:
    # Python refuses to write out a number of thousands of digits, but not in hexadecimal.
    shown = f"{given:#x}" if isinstance(given, int) and abs(given) > 2**64 else ascii(given)
    shown = shown if len(shown) < 80 else f"{shown[:60]}... ({type(given).__name__})"
    return InputError(
        f"torch.npu: `device` must be a torch.device, its name or an index, got {shown}. "
        'Pass "npu", "npu:0" or an index.',
        code="device-type",
    )


class device:
    """Makes a device current inside ``with``; None and -1 have no effect."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.idx >= 0:
            _C.set_device(self.prev_idx)


class device_of(device):
    """Makes the device of ``obj`` current; other objects have no effect."""

    def __init__(self, obj: Any) -> None:
        where = (
            obj.device
            if isinstance(obj, torch.Tensor | torch.UntypedStorage | torch.TypedStorage)
            else None
        )
        super().__init__(where if where is not None and where.type == "npu" else None)
