"""The settings of this package: the only place that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_command.setting_values import (
    cache_directory,
    read_file,
    read_flag,
    read_folder,
    read_number,
)
from npu_ops.errors import OperatorInputError
from npu_runtime.config import problem
from npu_runtime.errors import NpuError

__all__ = [
    "TOOLS",
    "VARIANT_MODES",
    "Settings",
    "ToolLists",
    "read_host_ops",
    "read_memory_directory",
    "read_settings",
    "read_tool_lists",
    "wrong_setting",
]

VARIANT_MODES = ("measured", "program", "host")
# The <TOOL> of OP_<TOOL>_LIST and OP_<TOOL>_DISABLE_LIST.
TOOLS = (
    "AUTOCOMPARE",
    "CAPTURE",
    "DTYPE_CAST",
    "FALLBACK",
    "OBSERVE",
    "OVERFLOW_CHECK",
    "TIME_MEASURE",
)


@dataclass(frozen=True)
class Settings:
    """The settings in the environment.

    Attributes:
        strict: whether an op that would run on the host is an error (`NPU_STRICT=1`).
        host_ops: patterns of ops that always run on the host (`NPU_FALLBACK_OPS`, separated
            by commas: `aten.mm`, `aten.*norm*`).
        variants: how to choose between the host and a program (`NPU_OPS_VARIANT`): `measured` uses
            records; `program` and `host` force one where possible.
        tune: whether a signature without a record is measured at its first call
            (`NPU_OPS_TUNE=1` or `0`); None leaves it to the device.
        records: file of measurements (`NPU_OPS_RECORDS`; by default `npu/op-records.json` under
            the XDG cache directory).
        programs: how many choices to remember, with their programs (`NPU_OPS_PROGRAMS`,
            default 512).
    """

    strict: bool
    host_ops: tuple[str, ...]
    variants: str
    tune: bool | None
    records: Path
    programs: int


@dataclass(frozen=True)
class ToolLists:
    """The ops that the environment names for a tool.

    Attributes:
        names: patterns of the ops to observe (`OP_<TOOL>_LIST`, separated by commas); empty means
            all.
        excluded: patterns of the ops to exclude (`OP_<TOOL>_DISABLE_LIST`).
    """

    names: tuple[str, ...]
    excluded: tuple[str, ...]


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings from the environment.

    Raises:
        OperatorInputError: [bad-setting] for an invalid value.
    """
    values = os.environ if environment is None else environment
    variants = values.get("NPU_OPS_VARIANT", "").strip() or "measured"
    if variants not in VARIANT_MODES:
        raise OperatorInputError(
            f"NPU_OPS_VARIANT must be one of {', '.join(VARIANT_MODES)}, got {variants!r}. "
            "Set one of them, or unset the variable.",
            code="bad-setting",
        )
    given = read_file(values, "NPU_OPS_RECORDS", error=OperatorInputError)
    return Settings(
        strict=bool(read_flag(values, "NPU_STRICT", error=OperatorInputError)),
        host_ops=read_host_ops(values),
        variants=variants,
        tune=read_flag(values, "NPU_OPS_TUNE", error=OperatorInputError),
        records=given or cache_directory("npu", values) / "op-records.json",
        programs=read_number(
            values, "NPU_OPS_PROGRAMS", 512, least=1, of="choices", error=OperatorInputError
        ),
    )


def read_host_ops(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Reads `NPU_FALLBACK_OPS` alone: every value is valid, so an import can read it."""
    values = os.environ if environment is None else environment
    return _patterns(values.get("NPU_FALLBACK_OPS", ""))


def read_tool_lists(tool: str, environment: Mapping[str, str] | None = None) -> ToolLists:
    """Reads the two lists of a tool.

    Args:
        tool: one of `TOOLS`.
        environment: to read from; by default the process's.
    """
    values = os.environ if environment is None else environment
    return ToolLists(
        names=_patterns(values.get(f"OP_{tool}_LIST", "")),
        excluded=_patterns(values.get(f"OP_{tool}_DISABLE_LIST", "")),
    )


def read_memory_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """Reads `NPU_OPS_MEMORY_DIR`, which `npu-ops monitor` sets for its command.

    Raises:
        OperatorInputError: [bad-setting] if it is a file.
    """
    values = os.environ if environment is None else environment
    return read_folder(values, "NPU_OPS_MEMORY_DIR", error=OperatorInputError)


def wrong_setting() -> NpuError | None:
    """Returns the error of a wrong setting, which disables the device; None if all are valid.

    Checks the settings of npu-runtime first. Does not need torch.
    """
    if problem is not None:
        return problem
    try:
        read_settings()
        read_memory_directory()
    except OperatorInputError as error:
        return error
    return None


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())
