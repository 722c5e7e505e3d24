"""Reads the facts about this machine from its files; opens only the npu device.

All paths are below a root directory, so that tests can simulate a machine.
"""

import grp
import importlib.metadata
import importlib.util
import os
import pwd
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from npu_runtime.config import config, variables
from npu_runtime.doctor.machine import (
    COMPILERS,
    DRIVER,
    LOADER,
    OLD_DRIVER,
    PACKAGES,
    AccelNode,
    Chip,
    Library,
    Machine,
    Serving,
    User,
    known_chips,
)
from npu_runtime.errors import NpuError
from npu_runtime.info import device_info

__all__ = ["read_machine"]

_INTEL = "0x8086"
# The class of processing accelerators (PCI Code and ID Assignment Specification 1.11, class 12h).
_ACCELERATOR = "0x1200"
_ALIAS = re.compile(r"^alias pci:v00008086d0000([0-9A-F]{4})\S* intel_vpu$", re.MULTILINE)

_LIBRARY_DIRECTORIES = (
    "lib",
    "lib64",
    "lib/x86_64-linux-gnu",
    "usr/lib",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/local/lib",
    "usr/local/lib64",
    "usr/local/lib/x86_64-linux-gnu",
)


def read_machine(
    root: Path = Path("/"),
    *,
    user: User | None = None,
    may_use: Callable[[Path], bool] = lambda path: os.access(path, os.R_OK | os.W_OK),
    library_path: str | None = None,
    serving: Serving | None = None,
    read_log: Callable[[], str] | None = None,
) -> Machine:
    """Reads all facts below a root; the other arguments replace the machine's answers.

    By default, it opens the driver to find the device in use, and reads messages from ``dmesg``.
    """
    if library_path is None:
        library_path = variables("LD_LIBRARY_PATH").get("LD_LIBRARY_PATH", "")
    libraries = _libraries(root, library_path)
    kernel = _text(root / "proc/sys/kernel/osrelease").strip()
    version, openvino_libraries = _openvino()
    return Machine(
        kernel=kernel,
        is_wsl="microsoft" in _text(root / "proc/version").lower(),
        container=_container(root),
        chips=tuple(_chips(root)),
        has_module=(root / "sys/module/intel_vpu").is_dir(),
        has_module_file=_has_module_file(root / "lib/modules" / kernel),
        kernel_devices=tuple(
            device.name
            for device in _list(root / "sys/class/accel")
            if _driver_of(device / "device") == "intel_vpu"
        ),
        nodes=tuple(_nodes(root, may_use)),
        user=user or _user(root),
        firmware=tuple(_firmware(root)),
        libraries=libraries,
        driver_compilers=_compilers_named_in(root, libraries),
        packages=_packages(_text(root / "var/lib/dpkg/status")),
        openvino=version,
        openvino_libraries=openvino_libraries,
        requested_device=config.device,
        serving=serving or _serving(),
        unknown_accelerators=tuple(_unknown_accelerators(root)),
        module_ids=_module_ids(root / "lib/modules" / kernel),
        parameters={
            file.name: _text(file).strip()
            for file in _list(root / "sys/module/intel_vpu/parameters")
        },
        log=tuple(line for line in (read_log or _dmesg)().splitlines() if "intel_vpu" in line),
    )


def _text(path: Path) -> str:
    """Returns a file's text; empty if it is missing or unreadable."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _list(path: Path) -> list[Path]:
    """Lists a directory, sorted; empty if it is missing."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _container(root: Path) -> str:
    if (root / ".dockerenv").exists():
        return "Docker"
    if (root / "run/.containerenv").exists():
        return "Podman"
    groups = _text(root / "proc/1/cgroup")
    for mark, name in (("kubepods", "Kubernetes"), ("docker", "Docker"), ("lxc", "LXC")):
        if mark in groups:
            return name
    return ""


def _driver_of(device: Path) -> str:
    """Returns the kernel driver's name of a device in sysfs."""
    link = device / "driver"
    return link.readlink().name if link.is_symlink() else ""


def _intel_devices(root: Path) -> Iterator[tuple[Path, str]]:
    for device in _list(root / "sys/bus/pci/devices"):
        if _text(device / "vendor").strip() == _INTEL:
            yield device, _text(device / "device").strip()


def _chips(root: Path) -> Iterator[Chip]:
    for device, number in _intel_devices(root):
        known = known_chips().get(number)
        if known is not None:
            driver = _driver_of(device)
            yield Chip(
                device.name, known.product, known.generation, driver, number, known.oldest_driver
            )


def _unknown_accelerators(root: Path) -> Iterator[str]:
    for device, number in _intel_devices(root):
        is_accelerator = _text(device / "class").strip().startswith(_ACCELERATOR)
        if is_accelerator and number not in known_chips():
            yield f"8086:{number.removeprefix('0x')} at {device.name}"


def _module_ids(directory: Path) -> frozenset[str]:
    found = _ALIAS.findall(_text(directory / "modules.alias"))
    return frozenset(f"0x{number.lower()}" for number in found)


def _dmesg() -> str:
    """Returns the kernel's messages; empty if this user may not read them."""
    try:
        done = subprocess.run(
            ["dmesg"], capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _has_module_file(directory: Path) -> bool:
    lists = (_text(directory / name) for name in ("modules.dep", "modules.builtin"))
    return any("intel_vpu.ko" in text for text in lists)


def _nodes(root: Path, may_use: Callable[[Path], bool]) -> Iterator[AccelNode]:
    names = _group_names(root)
    for node in _list(root / "dev/accel"):
        status = node.stat()
        yield AccelNode(
            path=f"/dev/accel/{node.name}",
            driver=_driver_of(root / "sys/class/accel" / node.name / "device"),
            group=names.get(status.st_gid, str(status.st_gid)),
            mode=status.st_mode & 0o777,
            is_usable=may_use(node),
        )


def _group_names(root: Path) -> dict[int, str]:
    entries = (line.split(":") for line in _text(root / "etc/group").splitlines())
    return {int(entry[2]): entry[0] for entry in entries if len(entry) > 2 and entry[2].isdigit()}


def _user(root: Path) -> User:
    def group_name(number: int) -> str:
        try:
            return grp.getgrgid(number).gr_name
        except KeyError:  # a container may run under ids without names
            return str(number)

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    members = (line.split(":") for line in _text(root / "etc/group").splitlines())
    return User(
        name=name,
        is_root=os.geteuid() == 0,
        groups=frozenset(group_name(number) for number in (*os.getgroups(), os.getegid())),
        enrolled=frozenset(
            entry[0] for entry in members if len(entry) > 3 and name in entry[3].split(",")
        ),
    )


def _firmware(root: Path) -> Iterator[str]:
    for directory in ("lib/firmware", "lib/firmware/updates", "usr/lib/firmware"):
        for file in _list(root / directory / "intel/vpu"):
            yield file.name


def _library_directories(root: Path, library_path: str) -> Iterator[Path]:
    for name in filter(None, library_path.split(":")):
        yield root / name.lstrip("/")
    for file in (root / "etc/ld.so.conf", *_list(root / "etc/ld.so.conf.d")):
        for line in _text(file).splitlines():
            if line.startswith("/"):
                yield root / line.strip().lstrip("/")
    for name in _LIBRARY_DIRECTORIES:
        yield root / name


def _libraries(root: Path, library_path: str) -> Mapping[str, Library]:
    found: dict[str, Library] = {}
    for directory in _library_directories(root, library_path):
        for file in _list(directory):
            name, mark, _ = file.name.partition(".so")
            known = name + mark
            if known in (LOADER, DRIVER, OLD_DRIVER, *COMPILERS) and known not in found:
                version = re.search(r"\.so\.([\d.]+)$", file.resolve().name)
                found[known] = Library(
                    path="/" + str(file.relative_to(root)), version=version[1] if version else ""
                )
    return found


def _compilers_named_in(root: Path, libraries: Mapping[str, Library]) -> tuple[str, ...]:
    """Returns the compiler libraries that the driver opens, by the names in its binary."""
    driver = libraries.get(DRIVER) or libraries.get(OLD_DRIVER)
    if driver is None:
        return ()
    try:
        binary = (root / driver.path.lstrip("/")).read_bytes()
    except OSError:
        return ()
    # Long names may be stored in pieces, so the first 30 characters decide.
    return tuple(name for name in COMPILERS[:2] if name.removesuffix(".so").encode()[:30] in binary)


def _packages(status: str) -> dict[str, str]:
    """Returns versions of the driver's packages from dpkg's status file."""
    versions = {}
    for entry in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in entry.splitlines() if ": " in line)
        if fields.get("Package") in PACKAGES and "installed" in fields.get("Status", "").split():
            versions[fields["Package"]] = fields.get("Version", "")
    return versions


def _openvino() -> tuple[str, tuple[str, ...]]:
    """Returns the openvino wheel's version and libraries, without importing it."""
    spec = importlib.util.find_spec("openvino")
    if spec is None or not spec.submodule_search_locations:
        return "", ()
    libraries = _list(Path(spec.submodule_search_locations[0], "libs"))
    return importlib.metadata.version("openvino"), tuple(file.name for file in libraries)


def _serving() -> Serving:
    try:
        info = device_info(0)
    except NpuError as error:
        return Serving("", "", error.message, error.code)
    return Serving(info.device, info.full_name, info.reason)
