"""Settings of npu-runtime from the environment, read once at import.

What they mean to the device is decided in csrc/driver; nothing else in the package reads the
environment.
"""

import os
from dataclasses import dataclass

__all__ = ["RuntimeConfig", "config", "variables"]


@dataclass(frozen=True)
class RuntimeConfig:
    """Settings that hold for the life of the process.

    Attributes:
        device: The driver's name of the device that is to serve as npu (``NPU_DEVICE``: ``NPU``,
            ``GPU``, ``CPU`` of OpenVINO); empty for the driver's choice.
        driver: Name of the driver (``NPU_DRIVER``: ``openvino``, ``sim`` or a vendor's); empty for
            vendors' drivers in turn, then openvino.
        launch_blocking: Whether each run waits for its end (``NPU_LAUNCH_BLOCKING=1``).
        sanitizer: Whether cross-stream races are looked for (``NPU_SANITIZER=1``).
        memory_check: Whether device memory still held at exit is reported, with the Python stacks
            that allocated it (``NPU_MEMORY_CHECK=1``).
        oom_snapshot: File that a memory snapshot is written to when memory runs out
            (``NPU_OOM_SNAPSHOT``); empty for none.
        profile_layers: Whether programs are loaded so that they can tell the times of their layers
            (``NPU_PROFILE_LAYERS=1``); compiled blobs are then neither used nor kept.
        attach: Whether observers of other wheels are installed, so that ``npu-profiler attach``
            finds this process (``NPU_ATTACH=1``).
    """

    device: str
    driver: str
    launch_blocking: bool
    sanitizer: bool
    memory_check: bool
    oom_snapshot: str
    profile_layers: bool = False
    attach: bool = False

    @classmethod
    def from_environment(cls) -> "RuntimeConfig":
        """The settings that the environment gives now."""
        return cls(
            device=_text("NPU_DEVICE"),
            driver=_text("NPU_DRIVER"),
            launch_blocking=_flag("NPU_LAUNCH_BLOCKING"),
            sanitizer=_flag("NPU_SANITIZER"),
            memory_check=_flag("NPU_MEMORY_CHECK"),
            oom_snapshot=_text("NPU_OOM_SNAPSHOT"),
            profile_layers=_flag("NPU_PROFILE_LAYERS"),
            attach=_flag("NPU_ATTACH"),
        )


def _text(name: str) -> str:
    return os.environ.get(name, "").strip()


def _flag(name: str) -> bool:
    """0, false, no, off and nothing are off; anything else is on."""
    return _text(name).lower() not in ("", "0", "false", "no", "off")


config = RuntimeConfig.from_environment()


def variables(*prefixes: str) -> dict[str, str]:
    """Variables of the environment whose names start with one of the prefixes, by name.

    For showing them to people and for rules of the system's own; settings are in ``config``.
    """
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}
