"""The facts about a machine that decide whether its NPU can serve, and those about Intel's driver.

The driver's were read from its sources; each in driver_facts.json has its source.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

__all__ = [
    "COMPILERS",
    "DRIVER",
    "LOADER",
    "OLD_DRIVER",
    "PACKAGES",
    "AccelNode",
    "Chip",
    "KnownChip",
    "Library",
    "LogFault",
    "Machine",
    "Release",
    "Serving",
    "User",
    "known_chips",
    "log_faults",
    "release_of",
    "releases",
    "version_numbers",
]

# Names by which the parts of Intel's NPU driver go.
LOADER = "libze_loader.so"
DRIVER = "libze_intel_npu.so"
OLD_DRIVER = "libze_intel_vpu.so"
COMPILERS = (
    "libnpu_driver_compiler.so",
    "libopenvino_intel_npu_compiler_loader.so",
    "libopenvino_intel_npu_compiler.so",
)
PACKAGES = ("intel-fw-npu", "intel-level-zero-npu", "intel-driver-compiler-npu")


@dataclass(frozen=True)
class Chip:
    """An NPU on the PCI bus."""

    slot: str  # where it is, for example ``0000:00:0b.0``
    product: str  # the processors that have it, for example ``Meteor Lake``
    generation: str  # which firmware it takes, for example ``37xx``
    driver: str  # the kernel driver that has it; empty when none has
    pci_id: str = ""  # of the device, for example ``0x7d1d``
    oldest_driver: str = ""  # release of Intel's driver that first supports it; empty for any


@dataclass(frozen=True)
class AccelNode:
    """A device node of the kernel's accelerator subsystem."""

    path: str  # for example ``/dev/accel/accel0``
    driver: str  # the kernel driver behind it; empty when the kernel does not tell
    group: str  # name of the group that owns it, or its number
    mode: int  # permission bits, for example ``0o660``
    is_usable: bool  # whether this process may read and write it


@dataclass(frozen=True)
class User:
    """Who runs this process."""

    name: str  # the login name
    is_root: bool  # whether it is the superuser, whom no permission stops
    groups: frozenset[str]  # names of the groups that the process has
    # Names of the groups that the system has it in; a new one is the process's after the next
    # login.
    enrolled: frozenset[str]


@dataclass(frozen=True)
class Library:
    """A shared library on the loader's path."""

    path: str  # where it is
    version: str  # what its file name says, for example ``1.24.1``; empty when nothing


@dataclass(frozen=True)
class Serving:
    """What serves as npu now."""

    device: str  # OpenVINO's name of it, ``NPU``, ``GPU`` or ``CPU``; empty when nothing can serve
    product: str  # what it is
    reason: str  # why it serves, or why nothing does
    code: str = ""  # of the error that keeps it from serving; empty where it serves


@dataclass(frozen=True)
class Machine:
    """Everything the checks look at."""

    kernel: str  # release of the kernel, for example ``6.8.0-45-generic``
    is_wsl: bool  # whether it is Windows' kernel for Linux
    container: str  # kind of the container this process is in; empty outside of one
    chips: tuple[Chip, ...]  # NPUs on the PCI bus
    has_module: bool  # whether intel_vpu is in the kernel now
    has_module_file: bool  # whether the kernel's modules include it
    # Accelerators that the kernel made with intel_vpu, for example ``accel0``.
    kernel_devices: tuple[str, ...]
    nodes: tuple[AccelNode, ...]  # device nodes that this process sees
    user: User  # who runs it
    firmware: tuple[str, ...]  # names of the firmware files for NPUs
    # Of the libraries that matter, those on the loader's path, by name.
    libraries: Mapping[str, Library]
    # Names of compiler libraries that the installed driver asks for.
    driver_compilers: tuple[str, ...]
    # Versions of the driver's packages, where the system's package manager tells.
    packages: Mapping[str, str] = field(default_factory=dict)
    openvino: str = ""  # version of the openvino wheel; empty when it is missing
    openvino_libraries: tuple[str, ...] = ()  # names of the libraries in that wheel
    requested_device: str = ""  # what ``NPU_DEVICE`` asks for; empty when it is not set
    serving: Serving = Serving("", "", "")  # what serves now
    # Intel's accelerators on the PCI bus that are no known NPU.
    unknown_accelerators: tuple[str, ...] = ()
    # PCI ids that the kernel's intel_vpu takes; empty where the kernel does not tell.
    module_ids: frozenset[str] = frozenset()
    parameters: Mapping[str, str] = field(default_factory=dict)  # of the loaded intel_vpu
    # The kernel's messages of intel_vpu, as far as this user may read them.
    log: tuple[str, ...] = ()

    @property
    def npu_nodes(self) -> tuple[AccelNode, ...]:
        """The device nodes that may be an NPU's: those of intel_vpu, or of nobody known."""
        return tuple(node for node in self.nodes if node.driver in ("intel_vpu", ""))


@dataclass(frozen=True)
class KnownChip:
    """An NPU by its PCI id."""

    product: str  # the processors that have it
    generation: str  # which firmware it takes, for example ``37xx``
    oldest_driver: str  # the release that first supports it; empty for any, or where none does yet
    source: str  # where that was read


@dataclass(frozen=True)
class Release:
    """A release of Intel's driver."""

    version: str  # for example ``1.32.0``
    date: str  # when it was made
    openvino: str  # the release of OpenVINO that it was made with; empty where that was none
    source: str  # where that was read


@dataclass(frozen=True)
class LogFault:
    """A message of the kernel that tells why the NPU does not run."""

    pattern: str  # a regular expression of it
    meaning: str  # as a clause
    fix: str  # what to do
    source: str  # where the message was read


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, ``(6, 8, 0)`` of ``6.8.0-45-generic``."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()


def known_chips() -> dict[str, KnownChip]:
    """NPUs by PCI id, such as ``0x7d1d``."""
    return {number: KnownChip(**row) for number, row in _content()["chips"].items()}


def releases() -> tuple[Release, ...]:
    """Releases of the driver, oldest first; the first is the oldest that OpenVINO still takes."""
    return tuple(Release(**row) for row in _content()["releases"])


def release_of(version: str) -> Release | None:
    """The newest release that is not newer than a version, as ``1.32.0``; None before the first."""
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
