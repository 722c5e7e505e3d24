"""Checks of the doctor: each maps the machine's facts to one result with its fix.

Checks do no I/O. Kernel messages and parameters are those of Linux's drivers/accel/ivpu.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from npu_runtime.doctor.machine import (
    COMPILERS,
    DRIVER,
    LOADER,
    OLD_DRIVER,
    Machine,
    log_faults,
    release_of,
    releases,
    version_numbers,
)
from npu_runtime.doctor.report import RELEASES, Check, needless, note, ok, problem, skipped

__all__ = [
    "CHECKS",
    "check_firmware",
    "check_kernel_log",
    "check_module",
    "check_parameters",
    "last_firmware",
    "run_checks",
]

_RELOAD = "sudo rmmod intel_vpu && sudo modprobe intel_vpu"
_STARTED = re.compile(r"Firmware: (\S+), version: (\S+)")
_AS_SHIPPED = {
    "test_mode": ("0",),
    "firmware": ("(null)", ""),
    "pll_max_ratio": ("255",),
    "disable_mmu_cont_pages": ("N", "0"),
}
# These disable the NPU; the others change or slow it.
_WITHOUT_RESULTS = ("test_mode",)


def check_module(machine: Machine) -> Check:
    """Checks the kernel driver."""
    for chip in machine.chips:
        if machine.module_ids and chip.pci_id and chip.pci_id not in machine.module_ids:
            return problem(
                f"intel_vpu of Linux {machine.kernel} does not know {chip.product} ({chip.pci_id})",
                "Install a newer kernel (on Ubuntu: sudo apt install linux-generic-hwe-24.04).",
            )
    if machine.has_module:
        return ok("intel_vpu is loaded")
    if not machine.chips:
        return needless("intel_vpu is not loaded")
    if machine.has_module_file:
        return problem(
            "intel_vpu is installed, but not loaded",
            "Run: sudo modprobe intel_vpu. If it is gone after a restart, look for a blacklist "
            "in /etc/modprobe.d.",
        )
    return problem(
        f"Linux {machine.kernel} comes without intel_vpu",
        "Install the rest of the kernel's modules (on Ubuntu linux-modules-extra), or a kernel "
        "built with CONFIG_DRM_ACCEL_IVPU.",
    )


def check_firmware(machine: Machine) -> Check:
    """Checks the firmware. If the kernel created a device, its firmware has started."""
    if machine.kernel_devices:
        started = last_firmware(machine.log)
        return ok(f"the kernel started the NPU with {started or 'it'}")
    if not machine.chips:
        return needless("not looked for")
    generation = machine.chips[0].generation
    files = [name for name in machine.firmware if name.startswith(f"vpu_{generation}")]
    if files:
        return note(
            f"{files[0]} is there, and the NPU has not started",
            "Read why in: sudo dmesg | grep -i -e vpu -e npu. A driver that was just installed "
            f"needs: {_RELOAD}.",
        )
    return problem(
        f"no vpu_{generation}*.bin in /lib/firmware/intel/vpu",
        f"Install intel-fw-npu from {RELEASES}, or a newer linux-firmware; then {_RELOAD}.",
    )


def check_kernel_log(machine: Machine) -> Check:
    """Checks the kernel's messages about the NPU since its last start."""
    if not machine.chips:
        return needless("not looked for")
    if not machine.log:
        return skipped("no message of intel_vpu can be read")
    lines = _last_attempt(machine.log)
    for fault in log_faults():
        for line in lines:
            if re.search(fault.pattern, line):
                found = f"{fault.meaning}: {_message(line)}"
                return (note if machine.kernel_devices else problem)(found, fault.fix)
    return ok("no failure of intel_vpu")


def check_parameters(machine: Machine) -> Check:
    """Checks for module parameters that differ from their defaults."""
    changed = {
        key: machine.parameters[key]
        for key, usual in _AS_SHIPPED.items()
        if machine.parameters.get(key, usual[0]) not in usual
    }
    if not machine.parameters:
        return skipped("intel_vpu has none that can be read")
    if not changed:
        return ok("as the kernel sets them")
    is_useless = any(key in changed for key in _WITHOUT_RESULTS)
    listed = ", ".join(f"{key}={value}" for key, value in changed.items())
    return (problem if is_useless else note)(
        f"intel_vpu runs with {listed}" + (", for tests without results" if is_useless else ""),
        f"Take it out of /etc/modprobe.d and of the kernel's command line, then {_RELOAD}.",
    )


def last_firmware(log: tuple[str, ...]) -> str:
    """Returns file and version of the firmware that the kernel loaded last; "" if unknown."""
    for line in reversed(log):
        if found := _STARTED.search(line):
            return f"{found[1]}, version {found[2].partition('*')[0]}"
    return ""


def _last_attempt(log: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the messages since the driver last probed the device, or last started it."""
    marks = ("enabling device", "Initialized intel_vpu")
    starts = [index for index, line in enumerate(log) if any(mark in line for mark in marks)]
    return log[starts[-1] + 1 :] if starts else log


def _message(line: str) -> str:
    """Strips time and device from a kernel message."""
    return line[line.index("intel_vpu") :].partition(": ")[2].strip() or line


_OLDEST_KERNEL = (6, 6)
_OLDEST_LOADER_FOR_NEW_NAME = (1, 17, 17)
_OPENVINO_FROM, _OPENVINO_BELOW = (2026, 4), (2026, 5)
_PLUGIN = "libopenvino_intel_npu_plugin.so"


def check_system(machine: Machine) -> Check:
    """Checks for WSL, which does not expose the NPU."""
    if machine.is_wsl:
        return problem(
            "Windows Subsystem for Linux, which does not pass the NPU through",
            "Run on Linux itself. Under WSL only the CPU can serve.",
        )
    if version_numbers(machine.kernel) < _OLDEST_KERNEL:
        return problem(
            f"Linux {machine.kernel}",
            "Install a kernel of version 6.6 or later; the NPU's driver needs it.",
        )
    return ok(f"Linux {machine.kernel}")


def check_chip(machine: Machine) -> Check:
    """Checks for an NPU on the PCI bus."""
    if machine.chips:
        found = ", ".join(f"{chip.product} at {chip.slot}" for chip in machine.chips)
        return ok(found)
    if machine.is_wsl:
        return skipped("not visible under WSL")
    if machine.unknown_accelerators:
        return problem(
            f"Intel accelerators that are not known here: {_listed(machine.unknown_accelerators)}",
            "Install a newer kernel and a newer npu-runtime. If it is an NPU and they do not know "
            "it either, send the output of npu-runtime collect-env --share.",
        )
    return problem(
        "no NPU on the PCI bus that the driver intel_vpu knows",
        "On a processor with an NPU (Intel Core Ultra), enable it in the firmware setup; in a "
        "virtual machine, pass it through. Without an NPU there is nothing to repair.",
    )


def check_container(machine: Machine) -> Check:
    """Checks whether a container hides the device."""
    if not machine.container:
        return ok("not in a container")
    if machine.npu_nodes:
        return ok(f"{machine.container}, with the device passed in")
    if not machine.chips:
        return needless(f"{machine.container}, without /dev/accel")
    return problem(
        f"{machine.container}, and the device was not passed in",
        "Start it with --device /dev/accel/accel0 --group-add $(stat -c %g /dev/accel/accel0); "
        "in Kubernetes, with Intel's device plugin for NPUs.",
    )


def check_device_node(machine: Machine) -> Check:
    """Checks the device node."""
    if machine.npu_nodes:
        return ok(_listed([node.path for node in machine.npu_nodes]))
    others = [f"{node.path} ({node.driver})" for node in machine.nodes]
    found = f"only {_listed(others)}" if others else "no /dev/accel/accel*"
    if not machine.chips:
        return needless(found)
    if machine.container:
        fix = "Pass the device into the container, as above."
    elif machine.kernel_devices:
        fix = "The kernel has the device; run: sudo udevadm trigger --subsystem-match=accel."
    else:
        fix = "It appears when the kernel module has loaded its firmware: see those two."
    return problem(found, fix)


def check_permission(machine: Machine) -> Check:
    """Checks whether this user may open the device node."""
    if not machine.npu_nodes:
        return skipped("no device node")
    for node in machine.npu_nodes:
        if node.is_usable:
            return ok(f"{machine.user.name} may use {node.path}")
    node = machine.npu_nodes[0]
    found = (
        f"{machine.user.name} may not read and write {node.path} "
        f"(mode {node.mode:o}, group {node.group})"
    )
    if node.mode & 0o060 == 0o060 and node.group != "root":
        return problem(found, "Join the device's group, see below.")
    rule = 'SUBSYSTEM=="accel", KERNEL=="accel*", GROUP="render", MODE="0660"'
    return problem(
        found,
        f"Give it to the group render: write the line {rule} to "
        "/etc/udev/rules.d/70-npu.rules, then sudo udevadm control --reload && "
        "sudo udevadm trigger --subsystem-match=accel.",
    )


def check_group(machine: Machine) -> Check:
    """Checks membership of the device's group: ``render`` with udev's default rules."""
    group = machine.npu_nodes[0].group if machine.npu_nodes else "render"
    group = "render" if group == "root" else group
    user = machine.user
    if user.is_root:
        return ok("root needs none")
    if group in user.groups:
        return ok(f"{user.name} is in {group}")
    if any(node.is_usable for node in machine.npu_nodes):
        return ok(f"{user.name} is not in {group}, and need not be")
    if group in user.enrolled:
        return (problem if machine.npu_nodes else note)(
            f"{user.name} was added to {group}, but this login is older", "Log out and in again."
        )
    if not machine.chips:
        return needless(f"{user.name} is not in {group}")
    return problem(
        f"{user.name} is not in {group}",
        f"Run: sudo usermod --append --groups {group} {user.name}, then log out and in again.",
    )


def check_level_zero(machine: Machine) -> Check:
    """Checks the Level Zero loader, through which OpenVINO reaches the driver."""
    loader = machine.libraries.get(LOADER)
    if loader is None:
        if not machine.chips:
            return needless(f"no {LOADER}")
        return problem(
            f"no {LOADER} on the loader's path",
            "Install it: on Debian and Ubuntu libze1, on Fedora oneapi-level-zero.",
        )
    version = version_numbers(loader.version)
    knows_new_name = len(version) < 3 or version >= _OLDEST_LOADER_FOR_NEW_NAME
    if not knows_new_name and DRIVER in machine.libraries and OLD_DRIVER not in machine.libraries:
        return problem(
            f"{loader.path}, version {loader.version}, does not know {DRIVER}",
            "Install version 1.17.17 or later.",
        )
    return ok(_with_version(loader.path, loader.version))


def check_driver(machine: Machine) -> Check:
    """Checks the user-space driver."""
    driver = machine.libraries.get(DRIVER)
    old = machine.libraries.get(OLD_DRIVER)
    if driver is not None and old is not None and old.path != driver.path:
        return note(
            f"{_with_version(driver.path, driver.version)}; an older one is at {old.path}",
            f"Remove {old.path}, which the loader may take instead.",
        )
    if driver is not None or old is not None:
        used = driver or old
        assert used is not None
        return ok(_with_version(used.path, used.version))
    if not machine.chips:
        return needless(f"no {DRIVER}")
    return problem(
        f"no {DRIVER} on the loader's path", f"Install intel-level-zero-npu from {RELEASES}."
    )


def check_packages(machine: Machine) -> Check:
    """Checks whether the driver's packages are of the same release."""
    if not machine.packages:
        return skipped("dpkg does not list the driver's packages")
    versions = sorted(set(machine.packages.values()))
    listed = ", ".join(f"{name} {version}" for name, version in sorted(machine.packages.items()))
    if len(versions) == 1:
        return ok(listed)
    return note(
        f"parts of several releases: {listed}", f"Install all of them from one release: {RELEASES}."
    )


def check_release(machine: Machine) -> Check:
    """Checks whether the driver is new enough for the chip and for OpenVINO."""
    version = _driver_version(machine)
    if not version:
        return skipped("the driver's version is not known")
    newest = releases()[-1]
    fix = f"Install release {newest.version} or a newer one, all packages of it: {RELEASES}."
    for chip in machine.chips:
        if chip.oldest_driver and version_numbers(version) < version_numbers(chip.oldest_driver):
            found = f"{version}; {chip.product} is supported from {chip.oldest_driver} on"
            return problem(found, fix)
    release = release_of(version)
    if release is None:
        oldest = releases()[0].version
        found = f"{version}; OpenVINO's plugin asks for {oldest} or later"
        return problem(found, fix)
    built, installed = version_numbers(release.openvino), version_numbers(machine.openvino)
    if built and installed and built[0] < installed[0]:
        found = f"{version}, made with OpenVINO {release.openvino}; {machine.openvino} is installed"
        return note(found, fix)
    return ok(version)


def check_openvino(machine: Machine) -> Check:
    """Checks the openvino wheel."""
    if not machine.openvino:
        return problem(
            "the openvino wheel is not installed",
            'Run: python -m pip install "openvino>=2026.4,<2026.5". Without it nothing can serve.',
        )
    if not _OPENVINO_FROM <= version_numbers(machine.openvino) < _OPENVINO_BELOW:
        return problem(
            f"version {machine.openvino}", 'Run: python -m pip install "openvino>=2026.4,<2026.5".'
        )
    return ok(f"version {machine.openvino}")


def check_plugin(machine: Machine) -> Check:
    """Checks OpenVINO's NPU plugin."""
    if _PLUGIN in machine.openvino_libraries:
        return ok(f"{_PLUGIN} in the openvino wheel")
    if not machine.openvino:
        return skipped("no OpenVINO")
    return problem(
        f"this openvino has no {_PLUGIN}",
        "Install the wheel from PyPI: python -m pip install --force-reinstall openvino.",
    )


def check_compiler(machine: Machine) -> Check:
    """Checks for an NPU compiler that the plugin or the driver finds."""
    in_wheel = [name for name in COMPILERS if name in machine.openvino_libraries]
    if in_wheel:
        return ok(f"{in_wheel[0]} in the openvino wheel")
    installed = [name for name in COMPILERS if name in machine.libraries]
    wanted = machine.driver_compilers
    matching = [name for name in installed if name in wanted or not wanted]
    if matching:
        return ok(f"the driver's, {machine.libraries[matching[0]].path}")
    if not machine.chips:
        return needless("not looked for")
    if installed:
        return problem(
            f"the driver asks for {_listed(wanted, 'or')}; installed is {_listed(installed)}",
            "Install intel-driver-compiler-npu of the same release as the "
            "driver: " + RELEASES + ".",
        )
    return problem(
        f"none of {_listed(COMPILERS[:2])}; without one the NPU runs compiled programs only",
        f"Install intel-driver-compiler-npu from {RELEASES}, of the driver's release.",
    )


def check_serving(machine: Machine) -> Check:
    """Checks the outcome: the device in use as npu."""
    serving, asked = machine.serving, machine.requested_device
    if serving.code == "bad-setting":
        return problem(serving.reason, "Correct this variable first.")
    if not serving.device:
        return problem(
            serving.reason, f"Unset NPU_DEVICE={asked}." if asked else "Repair OpenVINO, see above."
        )
    found = f"{serving.device} serves ({serving.product}): {serving.reason}"
    if serving.device == "NPU":
        return ok(found)
    if asked and asked.upper() != "NPU":
        return note(found, "Unset NPU_DEVICE to let the NPU serve.")
    return problem(
        found,
        "Solve the problems above. If there are none, read the driver's log: "
        "ZE_INTEL_NPU_LOGLEVEL=INFO npu-runtime info.",
    )


CHECKS: dict[str, Callable[[Machine], Check]] = {
    "system": check_system,
    "chip": check_chip,
    "kernel module": check_module,
    "firmware": check_firmware,
    "kernel log": check_kernel_log,
    "parameters": check_parameters,
    "container": check_container,
    "device node": check_device_node,
    "permission": check_permission,
    "group": check_group,
    "Level Zero": check_level_zero,
    "NPU driver": check_driver,
    "driver release": check_packages,
    "driver age": check_release,
    "OpenVINO": check_openvino,
    "NPU plugin": check_plugin,
    "compiler": check_compiler,
    "npu": check_serving,
}


def run_checks(machine: Machine) -> tuple[Check, ...]:
    """Runs all checks, from the chip up to the device in use."""
    return tuple(replace(check(machine), name=name) for name, check in CHECKS.items())


def _driver_version(machine: Machine) -> str:
    """Returns the package's or the library file's version, such as ``1.32.0``; "" if unknown."""
    driver = machine.libraries.get(DRIVER) or machine.libraries.get(OLD_DRIVER)
    told = machine.packages.get("intel-level-zero-npu") or (driver.version if driver else "")
    numbers = version_numbers(told)[:3]
    return ".".join(map(str, numbers)) if len(numbers) == 3 else ""


def _with_version(path: str, version: str) -> str:
    return f"{path}, version {version}" if version else path


def _listed(names: list[str] | tuple[str, ...], joined_by: str = "and") -> str:
    return f" {joined_by} ".join(names)
