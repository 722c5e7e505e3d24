"""The accelerator `npu` of Lightning's Trainer and Fabric."""

from typing import Any

import torch

from npu_runtime import npu
from npu_runtime.errors import InputError

__all__ = ["NpuAccelerator", "make_accelerator"]


class NpuAccelerator:
    """What Lightning asks of a device; its own base class comes in with `make_accelerator`."""

    def setup_device(self, device: torch.device) -> None:
        """Makes a device this process's current one."""
        npu.set_device(device)

    def teardown(self) -> None:
        """Gives unused memory back."""
        npu.empty_cache()

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Statistics of the device's memory, for Lightning's DeviceStatsMonitor."""
        return npu.memory_stats(device)

    def __reduce__(self) -> tuple[Any, ...]:
        """Is sent to a process that a strategy spawns, where its class is made again."""
        return _make, (type(self).__mro__[2],)

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """Indices of devices, one for each process: processes of a machine share its NPU.

        Args:
            devices: how many processes, -1 for one on each device, or a list of indices, which may
                be written as ``"0,0"``.

        Raises:
            InputError: it is none of these, or a device does not exist (code
                ``lightning-devices``).
        """
        count = npu.device_count()
        indices = _numbers(devices)
        if indices is None or not all(0 <= index < count for index in indices or [-1]):
            raise InputError(
                "Lightning on npu: devices is a number of processes, -1, or a list of indices "
                f"below {count}; got {devices!r}. Pass 1, or 2 for two processes that share the "
                "device.",
                code="lightning-devices",
            )
        return indices

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """The device of each process."""
        return [torch.device("npu", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """Number of devices."""
        return npu.device_count()

    @staticmethod
    def is_available() -> bool:
        """Whether a device can serve."""
        return npu.is_available()

    @staticmethod
    def name() -> str:
        """The name in Lightning's registry."""
        return "npu"


def make_accelerator(base: type) -> type:
    """The accelerator as a class of Lightning's Trainer or of its Fabric.

    Args:
        base: the Accelerator that the one or the other knows.
    """
    return type(base)("NPUAccelerator", (NpuAccelerator, base), {"__module__": __name__})


def _make(base: type) -> Any:
    return make_accelerator(base)()


def _numbers(devices: Any) -> list[int] | None:
    """The index of each process's device; None where it cannot be read."""
    if isinstance(devices, str):
        try:
            parts = [int(part) for part in devices.split(",") if part.strip()]
        except ValueError:
            return None
        devices = parts if "," in devices or not parts else parts[0]
    if isinstance(devices, list | tuple):
        is_list = all(isinstance(index, int) for index in devices)
        return list(devices) if is_list else None
    if isinstance(devices, bool) or not isinstance(devices, int):
        return None
    count = npu.device_count()
    processes = count if devices == -1 else devices
    return [process % count for process in range(processes)] if count else None
