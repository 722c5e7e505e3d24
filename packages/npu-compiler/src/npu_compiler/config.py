"""The settings of this package. No other module reads the environment."""

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
    """The settings from the environment."""

    # Directory of programs (NPU_COMPILE_CACHE_DIR; by default `npu` under the XDG cache
    # directory).
    cache_dir: Path
    # Size limit of that directory (NPU_COMPILE_CACHE_SIZE_MB, default 20000); with 0 compiled
    # models are not kept.
    cache_size_bytes: int
    # Directory of a model's files while the device reads them (NPU_COMPILE_TMPDIR; by default the
    # system's temporary directory).
    temporary_dir: Path | None
    # Directory for the dumps of each compilation (NPU_COMPILE_DEBUG); None for no dumps.
    debug_dir: Path | None
    # Target of programs unless CompilerConfig(target=...) is set (NPU_COMPILE_TARGET); None for the
    # automatic choice.
    target: str | None = None
    # OpenVINO device that runs exported models in a process without torch (NPU_DEVICE, as
    # npu-runtime reads it; by default the NPU if there is one).
    device: str | None = None
    # Library of an NPU's compiler (NPU_TARGET_COMPILER); None to search for one.
    target_compiler: Path | None = None
    # Directories that the linker searches before the system's (LD_LIBRARY_PATH).
    library_folders: tuple[Path, ...] = ()


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings from the environment.

    Raises:
        OptionError: [bad-setting] for a size that is not a whole number, and a path that cannot be
            a folder.
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
        target=values.get("NPU_COMPILE_TARGET") or None,
        device=values.get("NPU_DEVICE") or None,
        target_compiler=Path(given_library) if given_library else None,
        library_folders=tuple(
            Path(folder) for folder in values.get("LD_LIBRARY_PATH", "").split(":") if folder
        ),
    )


def _read_existing_folder(values: Mapping[str, str], name: str) -> Path | None:
    path = read_folder(values, name, error=OptionError)
    if path is not None and not path.is_dir():
        raise OptionError(
            f"{name} must be an existing folder, got {str(path)!r}. Create it, or unset the "
            "variable.",
            code="bad-setting",
        )
    return path
