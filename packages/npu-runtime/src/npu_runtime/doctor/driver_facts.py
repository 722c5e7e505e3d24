"""What Intel's driver and the kernel's intel_vpu support and say, read from their sources.

Each row of the data names the file and commit, or the page, that it was read from.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from npu_runtime.doctor.check import version_numbers

__all__ = [
    "KnownChip",
    "LogFault",
    "Release",
    "known_chips",
    "log_faults",
    "release_of",
    "releases",
]


@dataclass(frozen=True)
class KnownChip:
    """An NPU by its PCI id.

    Attributes:
        product: the processors that have it.
        generation: which firmware it takes, for example ``37xx``.
        oldest_driver: the release that first supports it; empty for any, or where none does yet.
        source: where that was read.
    """

    product: str
    generation: str
    oldest_driver: str
    source: str


@dataclass(frozen=True)
class Release:
    """A release of Intel's driver.

    Attributes:
        version: for example ``1.32.0``.
        date: when it was made.
        openvino: the release of OpenVINO that it was made with; empty where that was none.
        source: where that was read.
    """

    version: str
    date: str
    openvino: str
    source: str


@dataclass(frozen=True)
class LogFault:
    """A message of the kernel that tells why the NPU does not run.

    Attributes:
        pattern: a regular expression of it.
        meaning: as a clause.
        fix: what to do.
        source: where the message was read.
    """

    pattern: str
    meaning: str
    fix: str
    source: str


def known_chips() -> dict[str, KnownChip]:
    """NPUs by PCI id, such as ``0x7d1d``."""
    return {number: KnownChip(**row) for number, row in _content()["chips"].items()}


def releases() -> tuple[Release, ...]:
    """Releases of the driver, oldest first; the first is the oldest that OpenVINO still takes."""
    return tuple(Release(**row) for row in _content()["releases"])


def release_of(version: str) -> Release | None:
    """The newest release that is not newer than a version; None before the first one.

    Args:
        version: for example ``1.32.0``.
    """
    asked = version_numbers(version)
    known = [one for one in releases() if version_numbers(one.version) <= asked]
    return known[-1] if known else None


def log_faults() -> tuple[LogFault, ...]:
    """Messages that tell of faults, the most telling first."""
    return tuple(LogFault(**row) for row in _content()["log_faults"])


@cache
def _content() -> dict[str, Any]:
    text = (Path(__file__).parent / "driver_facts.json").read_text()
    content: dict[str, Any] = json.loads(text)
    return content
