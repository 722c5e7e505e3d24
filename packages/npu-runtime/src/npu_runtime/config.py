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
        device: OpenVINO's name of the device that is to serve as npu (``NPU_DEVICE``: ``NPU``,
            ``GPU``, ``CPU``); empty for the driver's choice.
    """

    device: str

    @classmethod
    def from_environment(cls) -> "RuntimeConfig":
        """The settings that the environment gives now."""
        return cls(device=os.environ.get("NPU_DEVICE", "").strip())


config = RuntimeConfig.from_environment()


def variables(*prefixes: str) -> dict[str, str]:
    """Variables of the environment whose names start with one of the prefixes, by name.

    For showing them to people and for rules of the system's own; settings are in ``config``.
    """
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}
