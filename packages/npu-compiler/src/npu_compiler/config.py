"""The settings of this package: the only place that reads the environment.

Options of one compilation are npu_compiler.options' matter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_compiler.errors import OptionError

__all__ = ["Settings", "read_settings"]


@dataclass(frozen=True)
class Settings:
    """What the environment says.

    Attributes:
        cache_dir: where programs are kept (NPU_COMPILE_CACHE_DIR; by default `npu` under the XDG
            cache directory).
        cache_size_bytes: bound of that directory (NPU_COMPILE_CACHE_SIZE_MB, default 20000); with
            0 compiled models are not kept.
        debug_dir: where each compilation writes what it did (NPU_COMPILE_DEBUG); None for nowhere.
        temporary_dir: where a model lies while the device reads it (NPU_COMPILE_TMPDIR; by default
            the system's).
        device: which of OpenVINO's devices runs exported models in a process without torch
            (NPU_DEVICE, as npu-runtime reads it; by default the NPU where there is one).
    """

    cache_dir: Path
    cache_size_bytes: int
    temporary_dir: Path | None
    debug_dir: Path | None
    device: str | None = None


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings from the environment.

    Raises:
        OptionError: [bad-setting] for a size that is no whole number.
    """
    values = os.environ if environment is None else environment
    given = values.get("NPU_COMPILE_CACHE_DIR")
    base = values.get("XDG_CACHE_HOME") or "~/.cache"
    size = values.get("NPU_COMPILE_CACHE_SIZE_MB", "20000")
    if not size.isdecimal():
        raise OptionError(
            f"NPU_COMPILE_CACHE_SIZE_MB: a whole number of megabytes; got {size!r}. "
            "Set one, or unset the variable.",
            code="bad-setting",
        )
    temporary, debug = values.get("NPU_COMPILE_TMPDIR"), values.get("NPU_COMPILE_DEBUG")
    return Settings(
        cache_dir=Path(given) if given else Path(base).expanduser() / "npu",
        cache_size_bytes=int(size) * 1_000_000,
        temporary_dir=Path(temporary) if temporary else None,
        debug_dir=Path(debug).expanduser() if debug else None,
        device=values.get("NPU_DEVICE") or None,
    )
