"""Facts about a machine that decide whether its NPU works, and about Intel's driver.

The driver's facts come from its sources, which driver_facts.json cites.
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

# Names of the parts of Intel's NPU driver.
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

    slot: str  # its address, for example ``0000:00:0b.0``
    product: str  # the processors that contain it, for example ``Meteor Lake``
    generation: str  # its firmware, for example ``37xx``
    driver: str  # its kernel driver; empty if none
    pci_id: str = ""  # the PCI device id, for example ``0x7d1d``
    oldest_driver: str = ""  # release of Intel's driver that first supports it; empty for any


@dataclass(frozen=True)
class AccelNode:
    """A device node of the kernel's accelerator subsystem."""

    path: str  # for example ``/dev/accel/accel0``
    driver: str  # its kernel driver; empty if unknown
    group: str  # name of the group that owns it, or its number
    mode: int  # permission bits, for example ``0o660``
    is_usable: bool  # whether this process may read and write it


@dataclass(frozen=True)
class User:
    """The user who runs this process."""

    name: str  # the login name
    is_root: bool  # whether it is the superuser, who bypasses permissions
    groups: frozenset[str]  # names of the process's groups
    # Names of the user's groups; a process gets new groups after the next login.
    enrolled: frozenset[str]


@dataclass(frozen=True)
class Library:
    """A shared library on the loader's path."""

    path: str  # where it is
    version: str  # the version in its file name, for example ``1.24.1``; empty if none


@dataclass(frozen=True)
class Serving:
    """The device in use as npu."""

    device: str  # OpenVINO's name of it, ``NPU``, ``GPU`` or ``CPU``; empty without a device
    product: str  # description of the finding
    reason: str  # why it was chosen, or why a device is missing
    code: str = ""  # code of the error that prevents its use; empty if it works


@dataclass(frozen=True)
class Machine:
    """All facts that the checks use."""

    kernel: str  # release of the kernel, for example ``6.8.0-45-generic``
    is_wsl: bool  # whether it is the kernel of WSL
    container: str  # kind of this process's container; empty outside containers
    chips: tuple[Chip, ...]  # NPUs on the PCI bus
    has_module: bool  # whether intel_vpu is loaded
    has_module_file: bool  # whether the kernel's modules include it
    # Accelerators created by intel_vpu, for example ``accel0``.
    kernel_devices: tuple[str, ...]
    nodes: tuple[AccelNode, ...]  # device nodes that this process sees
    user: User  # the user
    firmware: tuple[str, ...]  # names of the firmware files for NPUs
    # The relevant libraries on the loader's path, by name.
    libraries: Mapping[str, Library]
    # Names of compiler libraries that the installed driver loads.
    driver_compilers: tuple[str, ...]
    # Versions of the driver's packages, if the package manager knows them.
    packages: Mapping[str, str] = field(default_factory=dict)
    openvino: str = ""  # version of the openvino wheel; empty if missing
    openvino_libraries: tuple[str, ...] = ()  # names of the libraries in that wheel
    requested_device: str = ""  # the value of ``NPU_DEVICE``; empty if unset
    serving: Serving = Serving("", "", "")  # the device in use
    # Intel's accelerators on the PCI bus that are not known NPUs.
    unknown_accelerators: tuple[str, ...] = ()
    # PCI ids that the kernel's intel_vpu supports; empty if unknown.
    module_ids: frozenset[str] = frozenset()
    parameters: Mapping[str, str] = field(default_factory=dict)  # of the loaded intel_vpu module
    # The kernel's messages about intel_vpu, if this user may read them.
    log: tuple[str, ...] = ()

    @property
    def npu_nodes(self) -> tuple[AccelNode, ...]:
        """The device nodes that may be an NPU's: those of intel_vpu or of an unknown driver."""
        return tuple(node for node in self.nodes if node.driver in ("intel_vpu", ""))


@dataclass(frozen=True)
class KnownChip:
    """An NPU by its PCI id."""

    product: str  # the processors that contain it
    generation: str  # its firmware, for example ``37xx``
    oldest_driver: str  # the first release that supports it; empty if any or none does
    source: str  # the source of these facts


@dataclass(frozen=True)
class Release:
    """A release of Intel's driver."""

    version: str  # for example ``1.32.0``
    date: str  # its date
    openvino: str  # the OpenVINO release that it was built with; empty if none
    source: str  # the source of these facts


@dataclass(frozen=True)
class LogFault:
    """A kernel message that explains why the NPU does not run."""

    pattern: str  # a regular expression of it
    meaning: str  # the explanation, as a clause
    fix: str  # the fix
    source: str  # the source of the message


def version_numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version, ``(6, 8, 0)`` of ``6.8.0-45-generic``."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()


def known_chips() -> dict[str, KnownChip]:
    """Returns the known NPUs by PCI id, such as ``0x7d1d``."""
    return {number: KnownChip(**row) for number, row in _content()["chips"].items()}


def releases() -> tuple[Release, ...]:
    """Returns the driver's releases, oldest first, from the oldest that OpenVINO supports."""
    return tuple(Release(**row) for row in _content()["releases"])


def release_of(version: str) -> Release | None:
    """Returns the newest release up to a version such as ``1.32.0``, or None."""
    asked = version_numbers(version)
    known = [one for one in releases() if version_numbers(one.version) <= asked]
    return known[-1] if known else None


def log_faults() -> tuple[LogFault, ...]:
    """Returns the messages that report faults, the most specific first."""
    return tuple(LogFault(**row) for row in _content()["log_faults"])


@cache
def _content() -> dict[str, Any]:
    text = (Path(__file__).parent / "driver_facts.json").read_text()
    content: dict[str, Any] = json.loads(text)
    return content
