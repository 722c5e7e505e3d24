"""Settings of npu-runtime from the environment, read once at import.

csrc/driver interprets them; nothing else in the package reads the environment.
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

    # The driver's name of the device to use as npu (``NPU_DEVICE``: ``NPU``, ``GPU``,
    # ``CPU`` of OpenVINO); empty for the driver's choice.
    device: str = ""
    # Name of the driver (``NPU_DRIVER``: ``openvino``, ``sim`` or a vendor's); empty for vendors'
    # drivers in turn, then openvino.
    driver: str = ""
    # OpenVINO's C library for the driver openvino (``NPU_OPENVINO_LIBRARY``); empty for that of the
    # installed ``openvino``.
    openvino_library: str = ""
    launch_blocking: bool = False  # whether each run is synchronous (``NPU_LAUNCH_BLOCKING=1``)
    sanitizer: bool = False  # whether to detect cross-stream races (``NPU_SANITIZER=1``)
    # Whether to report device memory held at exit, with the Python stacks that allocated it
    # (``NPU_MEMORY_CHECK=1``).
    memory_check: bool = False
    # File for a memory snapshot when memory runs out (``NPU_OOM_SNAPSHOT``); empty
    # for none.
    oom_snapshot: str = ""
    # Whether to load programs with layer profiling
    # (``NPU_PROFILE_LAYERS=1``); compiled blobs are then neither read nor written.
    profile_layers: bool = False
    # Whether to install observers of other wheels, so that ``npu-profiler attach`` finds this
    # process (``NPU_ATTACH=1``).
    attach: bool = False
    # Whether to add npu to Hugging Face's libraries (``NPU_HUGGINGFACE=0``: no).
    hugging_face: bool = True
    # Whether those libraries default to npu (``NPU_AUTO``); None to decide by the device in use.
    auto: bool | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "RuntimeConfig":
        """Reads the settings from the environment.

        Raises:
            InputError: a variable has an invalid value (code ``bad-setting``). Names of devices and
                drivers are not checked here.
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
    """Returns the settings, or the defaults and the error if one is invalid.

    Runs during the import of torch, which must work in any environment.
    """
    try:
        return RuntimeConfig.from_environment(), None
    except InputError as error:
        return RuntimeConfig(), error


config, problem = _read()


def variables(*prefixes: str) -> dict[str, str]:
    """Returns environment variables that start with one of the prefixes, by name.

    For display and for the system's conventions; settings are in ``config``.
    """
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}
