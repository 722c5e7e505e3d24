"""The settings of this package: the only place that reads the environment.

What they mean is decided in fallback.py (host kernels) and in the package variants (programs).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import OperatorInputError

__all__ = ["VARIANT_MODES", "Settings", "read_host_ops", "read_settings"]

VARIANT_MODES = ("measured", "program", "host")


@dataclass(frozen=True)
class Settings:
    """What the environment says.

    Attributes:
        strict: whether an op that would run on the host is an error (`NPU_STRICT=1`).
        host_ops: patterns of ops that run on the host in any case (`NPU_FALLBACK_OPS`, separated
            by commas: `aten.mm`, `aten.*norm*`).
        variants: how ops with a program choose (`NPU_OPS_VARIANT`): `measured` by records,
            `program` or `host` wherever possible.
        tune: whether a signature without a record is measured at its first call
            (`NPU_OPS_TUNE=1` or `0`); None leaves it to the device.
        records: file of measurements (`NPU_OPS_RECORDS`; by default `npu/op-records.json` under
            the XDG cache directory).
        programs: how many choices are remembered, with their programs (`NPU_OPS_PROGRAMS`,
            default 512).
    """

    strict: bool
    host_ops: tuple[str, ...]
    variants: str
    tune: bool | None
    records: Path
    programs: int


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings from the environment.

    Raises:
        OperatorInputError: [bad-setting] for a value that a setting does not have.
    """
    values = os.environ if environment is None else environment
    variants = values.get("NPU_OPS_VARIANT", "").strip() or "measured"
    if variants not in VARIANT_MODES:
        raise OperatorInputError(
            f"NPU_OPS_VARIANT: one of {', '.join(VARIANT_MODES)}; got {variants!r}. "
            "Set one of them, or unset the variable.",
            "bad-setting",
        )
    programs = values.get("NPU_OPS_PROGRAMS", "512").strip()
    if not programs.isdecimal() or int(programs) == 0:
        raise OperatorInputError(
            f"NPU_OPS_PROGRAMS: a positive whole number; got {programs!r}. "
            "Set one, or unset the variable.",
            "bad-setting",
        )
    base = values.get("XDG_CACHE_HOME") or "~/.cache"
    given = values.get("NPU_OPS_RECORDS", "").strip()
    tune = values.get("NPU_OPS_TUNE", "").strip().lower()
    return Settings(
        strict=_is_on(values.get("NPU_STRICT", "")),
        host_ops=read_host_ops(values),
        variants=variants,
        tune=_is_on(tune) if tune else None,
        records=Path(given) if given else Path(base).expanduser() / "npu" / "op-records.json",
        programs=int(programs),
    )


def read_host_ops(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Reads `NPU_FALLBACK_OPS` alone: no text makes it wrong, so that an import can ask."""
    values = os.environ if environment is None else environment
    patterns = values.get("NPU_FALLBACK_OPS", "").split(",")
    return tuple(pattern.strip() for pattern in patterns if pattern.strip())


def _is_on(text: str) -> bool:
    """0, false, no, off and nothing are off; anything else is on."""
    return text.strip().lower() not in ("", "0", "false", "no", "off")
