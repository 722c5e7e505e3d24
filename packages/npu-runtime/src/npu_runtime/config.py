"""Settings of npu-runtime from the environment, read once at import.

What they mean to the device is decided in csrc/driver; nothing else in the package reads the
environment.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from npu_command.setting_values import read_file, read_flag
from npu_runtime.errors import InputError

__all__ = ["RuntimeConfig", "config", "problem", "variables"]


@dataclass(frozen=True)
class RuntimeConfig:
    """Settings that hold for the life of the process."""

    # The driver's name of the device that is to serve as npu (``NPU_DEVICE``: ``NPU``, ``GPU``,
    # ``CPU`` of OpenVINO); empty for the driver's choice.
    device: str = ""
    # Name of the driver (``NPU_DRIVER``: ``openvino``, ``sim`` or a vendor's); empty for vendors'
    # drivers in turn, then openvino.
    driver: str = ""
    # OpenVINO's C library for the driver openvino (``NPU_OPENVINO_LIBRARY``); empty for that of the
    # installed ``openvino``.
    openvino_library: str = ""
    launch_blocking: bool = False  # whether each run waits for its end (``NPU_LAUNCH_BLOCKING=1``)
    sanitizer: bool = False  # whether cross-stream races are looked for (``NPU_SANITIZER=1``)
    # Whether device memory still held at exit is reported, with the Python stacks that allocated it
    # (``NPU_MEMORY_CHECK=1``).
    memory_check: bool = False
    # File that a memory snapshot is written to when memory runs out (``NPU_OOM_SNAPSHOT``); empty
    # for none.
    oom_snapshot: str = ""
    # Whether programs are loaded so that they can tell the times of their layers
    # (``NPU_PROFILE_LAYERS=1``); compiled blobs are then neither used nor kept.
    profile_layers: bool = False
    # Whether observers of other wheels are installed, so that ``npu-profiler attach`` finds this
    # process (``NPU_ATTACH=1``).
    attach: bool = False
    # Whether Hugging Face's libraries are told of npu (``NPU_HUGGINGFACE=0``: no).
    hugging_face: bool = True
    # Whether those libraries take npu where a program names no device (``NPU_AUTO``); None where
    # that depends on what serves.
    auto: bool | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "RuntimeConfig":
        """The settings that the environment gives now.

        Raises:
            InputError: a variable holds what it cannot have (code ``bad-setting``). Which devices
                and drivers there are is not known here.
        """
        values = os.environ if environment is None else environment
        told = read_flag(values, "NPU_HUGGINGFACE", error=InputError)
        snapshot = read_file(values, "NPU_OOM_SNAPSHOT", error=InputError)
        library = read_file(values, "NPU_OPENVINO_LIBRARY", error=InputError)
        return cls(
            device=values.get("NPU_DEVICE", "").strip(),
            driver=values.get("NPU_DRIVER", "").strip(),
            openvino_library="" if library is None else str(library),
            launch_blocking=bool(read_flag(values, "NPU_LAUNCH_BLOCKING", error=InputError)),
            sanitizer=bool(read_flag(values, "NPU_SANITIZER", error=InputError)),
            memory_check=bool(read_flag(values, "NPU_MEMORY_CHECK", error=InputError)),
            oom_snapshot="" if snapshot is None else str(snapshot),
            profile_layers=bool(read_flag(values, "NPU_PROFILE_LAYERS", error=InputError)),
            attach=bool(read_flag(values, "NPU_ATTACH", error=InputError)),
            hugging_face=told is not False,
            auto=read_flag(values, "NPU_AUTO", error=InputError),
        )


def _read() -> tuple[RuntimeConfig, InputError | None]:
    """The settings; the defaults and the error where one of them is wrong.

    This is read while torch is imported, which must work in any environment.
    """
    try:
        return RuntimeConfig.from_environment(), None
    except InputError as error:
        return RuntimeConfig(), error


config, problem = _read()


def variables(*prefixes: str) -> dict[str, str]:
    """Variables of the environment whose names start with one of the prefixes, by name.

    For showing them to people and for rules of the system's own; settings are in ``config``.
    """
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}
