"""Patches for Lightning: npu as an accelerator of Trainer and Fabric."""

from functools import partial
from types import ModuleType
from typing import Any

import torch

from npu_runtime import npu
from npu_runtime.errors import InputError
from npu_runtime.library_patches.default_device import picks_npu
from npu_runtime.library_patches.replacing import wrap

__all__ = ["CHANGES", "NpuAccelerator", "make_accelerator"]


class NpuAccelerator:
    """Lightning's accelerator interface; `make_accelerator` adds the base class."""

    def setup_device(self, device: torch.device) -> None:
        """Makes a device this process's current one."""
        npu.set_device(device)

    def teardown(self) -> None:
        """Returns unused memory to the system."""
        npu.empty_cache()

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Statistics of the device's memory, for Lightning's DeviceStatsMonitor."""
        return npu.memory_stats(device)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles for spawned processes, which recreate the class."""
        return _make, (type(self).__mro__[2],)

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """Returns the device index of each process: processes of a machine share its NPU.

        Args:
            devices: number of processes, -1 for one per device, or a list of indices, also as
                ``"0,0"``.

        Raises:
            InputError: it is none of these, or a device does not exist (code
                ``lightning-devices``).
        """
        count = npu.device_count()
        indices = _numbers(devices)
        if indices is None or not all(0 <= index < count for index in indices or [-1]):
            raise InputError(
                "Lightning on npu: `devices` must be a number of processes, -1, or a list of "
                f"indices below {count}, got {devices!r}. Pass 1, or 2 for two processes that "
                "share the device.",
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
        """Whether a device is available."""
        return npu.is_available()

    @staticmethod
    def name() -> str:
        """The name in Lightning's registry."""
        return "npu"


def make_accelerator(base: type) -> type:
    """Returns the accelerator class, derived from the Accelerator of Trainer or Fabric."""
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


_MIXED = ("16-mixed", "bf16-mixed")


def _register(module: ModuleType, *, registry: str) -> None:
    known = getattr(module, registry)
    if "npu" not in known:  # else another package registered one
        known.register("npu", make_accelerator(module.Accelerator), description="NPUAccelerator")


def _connector(module: ModuleType, *, name: str, precision: str, plugin: str) -> None:
    """Adds npu to a connector, which builds parts from Trainer's or Fabric's arguments."""

    def accelerator(chosen: Any, *connector: Any) -> Any:
        return "npu" if picks_npu("Lightning runs") else chosen()

    def strategy(chosen: Any, connector: Any) -> Any:
        made = chosen(connector)
        if _is_ours(connector) and type(made) is module.SingleDeviceStrategy:
            # Lightning knows of one device by name where it is CUDA's or Apple's, else of the CPU.
            return type(made)(device=connector._parallel_devices[0])
        return made

    def mixed(chosen: Any, connector: Any) -> Any:
        asked = getattr(connector, precision)
        is_split = isinstance(connector.strategy, module.ModelParallelStrategy)
        if not _is_ours(connector) or getattr(connector, plugin) is not None or is_split:
            return chosen(connector)
        # Lightning takes any other accelerator's for CUDA's.
        return module.MixedPrecision(asked, "npu") if asked in _MIXED else chosen(connector)

    connector = getattr(module, name)
    wrap(connector, "_choose_auto_accelerator", accelerator)
    wrap(connector, "_choose_strategy", strategy)
    wrap(connector, "_check_and_init_precision", mixed)


def _is_ours(connector: Any) -> bool:
    return isinstance(connector.accelerator, NpuAccelerator)


def _ddp(module: ModuleType, *, question: str) -> None:
    def device_ids(asked: Any, strategy: Any) -> Any:
        # An index means a stream of CUDA's to Lightning. The module's own device serves as well.
        return None if strategy.root_device.type == "npu" else asked(strategy)

    wrap(module.DDPStrategy, question, device_ids)


def _changes(fabric: str, pytorch: str) -> dict[str, Any]:
    """The changes by module, under the names that a distribution gives its two halves."""
    return {
        f"{fabric}.accelerators": partial(_register, registry="ACCELERATOR_REGISTRY"),
        f"{fabric}.connector": partial(
            _connector,
            name="_Connector",
            precision="_precision_input",
            plugin="_precision_instance",
        ),
        f"{fabric}.strategies.ddp": partial(_ddp, question="_determine_ddp_device_ids"),
        f"{pytorch}.accelerators": partial(_register, registry="AcceleratorRegistry"),
        f"{pytorch}.trainer.connectors.accelerator_connector": partial(
            _connector,
            name="_AcceleratorConnector",
            precision="_precision_flag",
            plugin="_precision_plugin_flag",
        ),
        f"{pytorch}.strategies.ddp": partial(_ddp, question="determine_ddp_device_ids"),
    }


# By library; each distribution calls Fabric and the rest by names of its own.
CHANGES = {
    "lightning": _changes("lightning.fabric", "lightning.pytorch"),
    "lightning_fabric": _changes("lightning_fabric", "pytorch_lightning"),
}
