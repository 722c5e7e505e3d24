"""What Lightning's modules are told of npu: a function for each, run when the module is there."""

from functools import partial
from types import ModuleType
from typing import Any

from npu_runtime.library_patches.choice import picks_npu
from npu_runtime.library_patches.replacing import wrap
from npu_runtime.lightning.npu_accelerator import NpuAccelerator, make_accelerator

__all__ = ["changes"]

_MIXED = ("16-mixed", "bf16-mixed")


def _register(module: ModuleType, *, registry: str) -> None:
    known = getattr(module, registry)
    if "npu" not in known:  # else another package has brought its own
        known.register("npu", make_accelerator(module.Accelerator), description="NPUAccelerator")


def _connector(module: ModuleType, *, name: str, precision: str, plugin: str) -> None:
    """Has a connector, which makes parts from a Trainer's or a Fabric's arguments, mind npu."""

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


def changes(fabric: str, pytorch: str) -> dict[str, Any]:
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
