"""The npu device for PyTorch. Importing torch or this package registers it."""

from typing import TYPE_CHECKING

from npu_command.import_hooks import lazy_names, start

if TYPE_CHECKING:
    from npu_runtime import observe
    from npu_runtime._C import FrozenTensors, LayerRecord, Port
    from npu_runtime.errors import (
        DeviceError,
        DriverError,
        IndexRangeError,
        InputError,
        NpuError,
        ProgramError,
    )
    from npu_runtime.info import DeviceInfo, device_info
    from npu_runtime.program import IndexCheck, Program, Session, load_program

__all__ = [
    "DeviceError",
    "DeviceInfo",
    "DriverError",
    "FrozenTensors",
    "IndexCheck",
    "IndexRangeError",
    "InputError",
    "LayerRecord",
    "NpuError",
    "Port",
    "Program",
    "ProgramError",
    "Session",
    "device_info",
    "load_program",
    "observe",
]

_ERRORS = (
    "DeviceError", "DriverError", "IndexRangeError", "InputError", "NpuError", "ProgramError",
)  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    dict.fromkeys(_ERRORS, "errors")
    | dict.fromkeys(("FrozenTensors", "LayerRecord", "Port"), "_C")
    | dict.fromkeys(("DeviceInfo", "device_info"), "info")
    | dict.fromkeys(("IndexCheck", "Program", "Session", "load_program"), "program")
    | {"observe": None},
)


def _start() -> None:
    import torch  # noqa: F401  # before anything of ours: the extension module links against it

    from npu_runtime.startup import registration  # noqa: F401  # from here on torch knows npu

    # isort: split
    from npu_runtime import observe  # noqa: F401
    from npu_runtime.plugins import load_kernels

    load_kernels()


start(_start)
