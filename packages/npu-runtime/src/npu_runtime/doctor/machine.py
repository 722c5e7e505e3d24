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
    """An NPU on the PCI bus.

    Attributes:
        slot: where it is, for example ``0000:00:0b.0``.
        product: the processors that have it, for example ``Meteor Lake``.
        generation: which firmware it takes, for example ``37xx``.
        driver: the kernel driver that has it; empty when none has.
        pci_id: of the device, for example ``0x7d1d``.
        oldest_driver: release of Intel's driver that first supports it; empty for any.
    """

    slot: str
    product: str
    generation: str
    driver: str
    pci_id: str = ""
    oldest_driver: str = ""


@dataclass(frozen=True)
class AccelNode:
    """A device node of the kernel's accelerator subsystem.

    Attributes:
        path: for example ``/dev/accel/accel0``.
        driver: the kernel driver behind it; empty when the kernel does not tell.
        group: name of the group that owns it, or its number.
        mode: permission bits, for example ``0o660``.
        is_usable: whether this process may read and write it.
    """

    path: str
    driver: str
    group: str
    mode: int
    is_usable: bool


@dataclass(frozen=True)
class User:
    """Who runs this process.

    Attributes:
        name: the login name.
        is_root: whether it is the superuser, whom no permission stops.
        groups: names of the groups that the process has.
        enrolled: names of the groups that the system has it in; a new one is the process's after
            the next login.
    """

    name: str
    is_root: bool
    groups: frozenset[str]
    enrolled: frozenset[str]


@dataclass(frozen=True)
class Library:
    """A shared library on the loader's path.

    Attributes:
        path: where it is.
        version: what its file name says, for example ``1.24.1``; empty when nothing.
    """

    path: str
    version: str


@dataclass(frozen=True)
class Serving:
    """What serves as npu now.

    Attributes:
        device: OpenVINO's name of it, ``NPU``, ``GPU`` or ``CPU``; empty when nothing can serve.
        product: what it is.
        reason: why it serves, or why nothing does.
        code: of the error that keeps it from serving; empty where it serves.
    """

    device: str
    product: str
    reason: str
    code: str = ""


@dataclass(frozen=True)
class Machine:
    """Everything the checks look at.

    Attributes:
        kernel: release of the kernel, for example ``6.8.0-45-generic``.
        is_wsl: whether it is Windows' kernel for Linux.
        container: kind of the container this process is in; empty outside of one.
        chips: NPUs on the PCI bus.
        has_module: whether intel_vpu is in the kernel now.
        has_module_file: whether the kernel's modules include it.
        kernel_devices: accelerators that the kernel made with intel_vpu, for example ``accel0``.
        nodes: device nodes that this process sees.
        user: who runs it.
        firmware: names of the firmware files for NPUs.
        libraries: of the libraries that matter, those on the loader's path, by name.
        driver_compilers: names of compiler libraries that the installed driver asks for.
        packages: versions of the driver's packages, where the system's package manager tells.
        openvino: version of the openvino wheel; empty when it is missing.
        openvino_libraries: names of the libraries in that wheel.
        requested_device: what ``NPU_DEVICE`` asks for; empty when it is not set.
        serving: what serves now.
        unknown_accelerators: Intel's accelerators on the PCI bus that are no known NPU.
        module_ids: PCI ids that the kernel's intel_vpu takes; empty where the kernel does not tell.
        parameters: of the loaded intel_vpu.
        log: the kernel's messages of intel_vpu, as far as this user may read them.
    """

    kernel: str
    is_wsl: bool
    container: str
    chips: tuple[Chip, ...]
    has_module: bool
    has_module_file: bool
    kernel_devices: tuple[str, ...]
    nodes: tuple[AccelNode, ...]
    user: User
    firmware: tuple[str, ...]
    libraries: Mapping[str, Library]
    driver_compilers: tuple[str, ...]
    packages: Mapping[str, str] = field(default_factory=dict)
    openvino: str = ""
    openvino_libraries: tuple[str, ...] = ()
    requested_device: str = ""
    serving: Serving = Serving("", "", "")
    unknown_accelerators: tuple[str, ...] = ()
    module_ids: frozenset[str] = frozenset()
    parameters: Mapping[str, str] = field(default_factory=dict)
    log: tuple[str, ...] = ()

    @property
    def npu_nodes(self) -> tuple[AccelNode, ...]:
        """The device nodes that may be an NPU's: those of intel_vpu, or of nobody known."""
        return tuple(node for node in self.nodes if node.driver in ("intel_vpu", ""))


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
