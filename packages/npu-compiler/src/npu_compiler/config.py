"""The settings of this package: the only place that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_command.setting_values import cache_directory, read_folder, read_number
from npu_compiler.errors import OptionError

__all__ = ["Settings", "read_settings"]


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    # Where programs are kept (NPU_COMPILE_CACHE_DIR; by default `npu` under the XDG cache
    # directory).
    cache_dir: Path
    # Bound of that directory (NPU_COMPILE_CACHE_SIZE_MB, default 20000); with 0 compiled models are
    # not kept.
    cache_size_bytes: int
    # Where a model lies while the device reads it (NPU_COMPILE_TMPDIR; by default the system's).
    temporary_dir: Path | None
    # Where each compilation writes what it did (NPU_COMPILE_DEBUG); None for nowhere.
    debug_dir: Path | None
    # What programs are made for where CompilerConfig(target=...) does not say (NPU_COMPILE_TARGET:
    # "openvino", "kernels" or "NPU"); None to choose.
    target: str | None = None
    # Which of OpenVINO's devices runs exported models in a process without torch (NPU_DEVICE, as
    # npu-runtime reads it; by default the NPU where there is one).
    device: str | None = None
    # Library of an NPU's compiler (NPU_TARGET_COMPILER); None to search for one.
    target_compiler: Path | None = None
    # Where the linker finds libraries before the system's (LD_LIBRARY_PATH).
    library_folders: tuple[Path, ...] = ()


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings from the environment.

    Raises:
        OptionError: [bad-setting] for a size that is no whole number, a path at which no folder can
            be, and a target that is not known.
    """
    values = os.environ if environment is None else environment
    given = read_folder(values, "NPU_COMPILE_CACHE_DIR", error=OptionError)
    given_library = values.get("NPU_TARGET_COMPILER")
    megabytes = read_number(
        values, "NPU_COMPILE_CACHE_SIZE_MB", 20_000, of="megabytes", error=OptionError
    )
    return Settings(
        cache_dir=given or cache_directory("npu", values),
        cache_size_bytes=megabytes * 1_000_000,
        temporary_dir=_read_existing_folder(values, "NPU_COMPILE_TMPDIR"),
        debug_dir=read_folder(values, "NPU_COMPILE_DEBUG", error=OptionError),
        target=_read_target(values),
        device=values.get("NPU_DEVICE") or None,
        target_compiler=Path(given_library) if given_library else None,
        library_folders=tuple(
            Path(folder) for folder in values.get("LD_LIBRARY_PATH", "").split(":") if folder
        ),
    )


def _read_target(values: Mapping[str, str]) -> str | None:
    target = values.get("NPU_COMPILE_TARGET") or None
    if target not in (None, "openvino", "kernels", "NPU"):
        raise OptionError(
            f'NPU_COMPILE_TARGET: must be "openvino", "kernels" or "NPU"; got {target!r}. Unset '
            "the variable to have it chosen.",
            code="bad-setting",
        )
    return target


def _read_existing_folder(values: Mapping[str, str], name: str) -> Path | None:
    path = read_folder(values, name, error=OptionError)
    if path is not None and not path.is_dir():
        raise OptionError(
            f"{name}: a folder that exists; got {str(path)!r}. Make it, or unset the variable.",
            code="bad-setting",
        )
    return path
