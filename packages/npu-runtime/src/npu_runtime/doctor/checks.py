"""The doctor's checks: each takes the facts about a machine and gives one result with its fix.

No check reads anything. What the kernel has to do with it is in npu_runtime.doctor.kernel_checks.
"""

from collections.abc import Callable

from npu_runtime.doctor.kernel_checks import (
    check_firmware,
    check_kernel_log,
    check_module,
    check_parameters,
)
from npu_runtime.doctor.machine import (
    COMPILERS,
    DRIVER,
    LOADER,
    OLD_DRIVER,
    Machine,
    release_of,
    releases,
    version_numbers,
)
from npu_runtime.doctor.report import RELEASES, Check, Status, needless

__all__ = ["CHECKS", "run_checks"]

_OLDEST_KERNEL = (6, 6)
_OLDEST_LOADER_FOR_NEW_NAME = (1, 17, 17)
_OPENVINO_FROM, _OPENVINO_BELOW = (2026, 4), (2026, 5)
_PLUGIN = "libopenvino_intel_npu_plugin.so"


def check_system(machine: Machine) -> Check:
    """Linux itself: the NPU is not passed into Windows' Linux."""
    if machine.is_wsl:
        return Check(
            "system",
            Status.PROBLEM,
            "Windows Subsystem for Linux, which does not pass the NPU through",
            "Run on Linux itself. Under WSL only the CPU can serve.",
        )
    if version_numbers(machine.kernel) < _OLDEST_KERNEL:
        return Check(
            "system",
            Status.PROBLEM,
            f"Linux {machine.kernel}",
            "Install a kernel of version 6.6 or later; the NPU's driver needs it.",
        )
    return Check("system", Status.OK, f"Linux {machine.kernel}")


def check_chip(machine: Machine) -> Check:
    """An NPU on the PCI bus."""
    if machine.chips:
        found = ", ".join(f"{chip.product} at {chip.slot}" for chip in machine.chips)
        return Check("chip", Status.OK, found)
    if machine.is_wsl:
        return Check("chip", Status.SKIPPED, "not visible under WSL")
    if machine.unknown_accelerators:
        return Check(
            "chip",
            Status.PROBLEM,
            f"Intel accelerators that are not known here: {_listed(machine.unknown_accelerators)}",
            "Install a newer kernel and a newer npu-runtime. If it is an NPU and they do not know "
            "it either, send what npu-runtime collect-env --share prints.",
        )
    return Check(
        "chip",
        Status.PROBLEM,
        "no NPU on the PCI bus that the driver intel_vpu knows",
        "On a processor with an NPU (Intel Core Ultra), enable it in the firmware setup; in a "
        "virtual machine, pass it through. Without an NPU there is nothing to repair.",
    )


def check_container(machine: Machine) -> Check:
    """Whether a container hides the device."""
    if not machine.container:
        return Check("container", Status.OK, "not in a container")
    if machine.npu_nodes:
        return Check("container", Status.OK, f"{machine.container}, with the device passed in")
    if not machine.chips:
        return needless("container", f"{machine.container}, without /dev/accel")
    return Check(
        "container",
        Status.PROBLEM,
        f"{machine.container}, and the device was not passed in",
        "Start it with --device /dev/accel/accel0 --group-add $(stat -c %g /dev/accel/accel0); "
        "in Kubernetes, with Intel's device plugin for NPUs.",
    )


def check_device_node(machine: Machine) -> Check:
    """The file that a program opens."""
    if machine.npu_nodes:
        return Check("device node", Status.OK, _listed([node.path for node in machine.npu_nodes]))
    others = [f"{node.path} ({node.driver})" for node in machine.nodes]
    found = f"only {_listed(others)}" if others else "no /dev/accel/accel*"
    if not machine.chips:
        return needless("device node", found)
    if machine.container:
        fix = "Pass the device into the container, as above."
    elif machine.kernel_devices:
        fix = "The kernel has the device; run: sudo udevadm trigger --subsystem-match=accel."
    else:
        fix = "It appears when the kernel module has loaded its firmware: see those two."
    return Check("device node", Status.PROBLEM, found, fix)


def check_permission(machine: Machine) -> Check:
    """Whether this user may open it."""
    if not machine.npu_nodes:
        return Check("permission", Status.SKIPPED, "no device node")
    for node in machine.npu_nodes:
        if node.is_usable:
            return Check("permission", Status.OK, f"{machine.user.name} may use {node.path}")
    node = machine.npu_nodes[0]
    found = (
        f"{machine.user.name} may not read and write {node.path} "
        f"(mode {node.mode:o}, group {node.group})"
    )
    if node.mode & 0o060 == 0o060 and node.group != "root":
        return Check("permission", Status.PROBLEM, found, "Join the device's group, see below.")
    rule = 'SUBSYSTEM=="accel", KERNEL=="accel*", GROUP="render", MODE="0660"'
    return Check(
        "permission",
        Status.PROBLEM,
        found,
        f"Give it to the group render: write the line {rule} to "
        "/etc/udev/rules.d/70-npu.rules, then sudo udevadm control --reload && "
        "sudo udevadm trigger --subsystem-match=accel.",
    )


def check_group(machine: Machine) -> Check:
    """Membership of the group that owns the device: ``render``, where udev has its way."""
    group = machine.npu_nodes[0].group if machine.npu_nodes else "render"
    group = "render" if group == "root" else group
    user = machine.user
    if user.is_root:
        return Check("group", Status.OK, "root needs none")
    if group in user.groups:
        return Check("group", Status.OK, f"{user.name} is in {group}")
    if any(node.is_usable for node in machine.npu_nodes):
        return Check("group", Status.OK, f"{user.name} is not in {group}, and need not be")
    if group in user.enrolled:
        return Check(
            "group",
            Status.PROBLEM if machine.npu_nodes else Status.NOTE,
            f"{user.name} was added to {group}, but this login is older",
            "Log out and in again.",
        )
    if not machine.chips:
        return needless("group", f"{user.name} is not in {group}")
    return Check(
        "group",
        Status.PROBLEM,
        f"{user.name} is not in {group}",
        f"Run: sudo usermod --append --groups {group} {user.name}, then log out and in again.",
    )


def check_level_zero(machine: Machine) -> Check:
    """The loader through which OpenVINO reaches the driver."""
    loader = machine.libraries.get(LOADER)
    if loader is None:
        if not machine.chips:
            return needless("Level Zero", f"no {LOADER}")
        return Check(
            "Level Zero",
            Status.PROBLEM,
            f"no {LOADER} on the loader's path",
            "Install it: on Debian and Ubuntu libze1, on Fedora oneapi-level-zero.",
        )
    version = version_numbers(loader.version)
    knows_new_name = len(version) < 3 or version >= _OLDEST_LOADER_FOR_NEW_NAME
    if not knows_new_name and DRIVER in machine.libraries and OLD_DRIVER not in machine.libraries:
        return Check(
            "Level Zero",
            Status.PROBLEM,
            f"{loader.path}, version {loader.version}, does not know {DRIVER}",
            "Install version 1.17.17 or later.",
        )
    return Check("Level Zero", Status.OK, _with_version(loader.path, loader.version))


def check_driver(machine: Machine) -> Check:
    """The driver's half outside of the kernel."""
    driver = machine.libraries.get(DRIVER)
    old = machine.libraries.get(OLD_DRIVER)
    if driver is not None and old is not None and old.path != driver.path:
        return Check(
            "NPU driver",
            Status.NOTE,
            f"{_with_version(driver.path, driver.version)}; an older one is at {old.path}",
            f"Remove {old.path}, which the loader may take instead.",
        )
    if driver is not None or old is not None:
        used = driver or old
        assert used is not None
        return Check("NPU driver", Status.OK, _with_version(used.path, used.version))
    if not machine.chips:
        return needless("NPU driver", f"no {DRIVER}")
    return Check(
        "NPU driver",
        Status.PROBLEM,
        f"no {DRIVER} on the loader's path",
        f"Install intel-level-zero-npu from {RELEASES}.",
    )


def check_packages(machine: Machine) -> Check:
    """Whether the driver's parts are of one release."""
    if not machine.packages:
        return Check("driver release", Status.SKIPPED, "dpkg does not list the driver's packages")
    versions = sorted(set(machine.packages.values()))
    listed = ", ".join(f"{name} {version}" for name, version in sorted(machine.packages.items()))
    if len(versions) == 1:
        return Check("driver release", Status.OK, listed)
    return Check(
        "driver release",
        Status.NOTE,
        f"parts of several releases: {listed}",
        f"Install all of them from one release: {RELEASES}.",
    )


def check_release(machine: Machine) -> Check:
    """Whether the driver is new enough for the chip and for OpenVINO."""
    name = "driver age"
    version = _driver_version(machine)
    if not version:
        return Check(name, Status.SKIPPED, "the driver's version is not known")
    newest = releases()[-1]
    fix = f"Install release {newest.version} or a newer one, all packages of it: {RELEASES}."
    for chip in machine.chips:
        if chip.oldest_driver and version_numbers(version) < version_numbers(chip.oldest_driver):
            found = f"{version}; {chip.product} is supported from {chip.oldest_driver} on"
            return Check(name, Status.PROBLEM, found, fix)
    release = release_of(version)
    if release is None:
        oldest = releases()[0].version
        found = f"{version}; OpenVINO's plugin asks for {oldest} or later"
        return Check(name, Status.PROBLEM, found, fix)
    built, installed = version_numbers(release.openvino), version_numbers(machine.openvino)
    if built and installed and built[0] < installed[0]:
        found = f"{version}, made with OpenVINO {release.openvino}; {machine.openvino} is installed"
        return Check(name, Status.NOTE, found, fix)
    return Check(name, Status.OK, version)


def check_openvino(machine: Machine) -> Check:
    """The openvino wheel."""
    if not machine.openvino:
        return Check(
            "OpenVINO",
            Status.PROBLEM,
            "the openvino wheel is not installed",
            'Run: python -m pip install "openvino>=2026.4,<2026.5". Without it nothing can serve.',
        )
    if not _OPENVINO_FROM <= version_numbers(machine.openvino) < _OPENVINO_BELOW:
        return Check(
            "OpenVINO",
            Status.PROBLEM,
            f"version {machine.openvino}",
            'Run: python -m pip install "openvino>=2026.4,<2026.5".',
        )
    return Check("OpenVINO", Status.OK, f"version {machine.openvino}")


def check_plugin(machine: Machine) -> Check:
    """OpenVINO's part for NPUs."""
    if _PLUGIN in machine.openvino_libraries:
        return Check("NPU plugin", Status.OK, f"{_PLUGIN} in the openvino wheel")
    if not machine.openvino:
        return Check("NPU plugin", Status.SKIPPED, "no OpenVINO")
    return Check(
        "NPU plugin",
        Status.PROBLEM,
        f"this openvino has no {_PLUGIN}",
        "Install the wheel from PyPI: python -m pip install --force-reinstall openvino.",
    )


def check_compiler(machine: Machine) -> Check:
    """A compiler for NPU programs that the plugin or the installed driver will find."""
    in_wheel = [name for name in COMPILERS if name in machine.openvino_libraries]
    if in_wheel:
        return Check("compiler", Status.OK, f"{in_wheel[0]} in the openvino wheel")
    installed = [name for name in COMPILERS if name in machine.libraries]
    wanted = machine.driver_compilers
    matching = [name for name in installed if name in wanted or not wanted]
    if matching:
        return Check("compiler", Status.OK, f"the driver's, {machine.libraries[matching[0]].path}")
    if not machine.chips:
        return needless("compiler", "not looked for")
    if installed:
        return Check(
            "compiler",
            Status.PROBLEM,
            f"the driver asks for {_listed(wanted, 'or')}; installed is {_listed(installed)}",
            "Install intel-driver-compiler-npu of the driver's own release: " + RELEASES + ".",
        )
    return Check(
        "compiler",
        Status.PROBLEM,
        f"none of {_listed(COMPILERS[:2])}; without one the NPU runs compiled programs only",
        f"Install intel-driver-compiler-npu from {RELEASES}, of the driver's release.",
    )


def check_serving(machine: Machine) -> Check:
    """The outcome: what serves as npu."""
    serving, asked = machine.serving, machine.requested_device
    if serving.code == "bad-setting":
        return Check("npu", Status.PROBLEM, serving.reason, "Correct this variable first.")
    if not serving.device:
        return Check(
            "npu",
            Status.PROBLEM,
            serving.reason,
            f"Unset NPU_DEVICE={asked}." if asked else "Repair OpenVINO, see above.",
        )
    found = f"{serving.device} serves ({serving.product}): {serving.reason}"
    if serving.device == "NPU":
        return Check("npu", Status.OK, found)
    if asked and asked.upper() != "NPU":
        return Check("npu", Status.NOTE, found, "Unset NPU_DEVICE to let the NPU serve.")
    return Check(
        "npu",
        Status.PROBLEM,
        found,
        "Solve what is above. If nothing is, ask the driver: "
        "ZE_INTEL_NPU_LOGLEVEL=INFO npu-runtime info.",
    )


CHECKS: tuple[Callable[[Machine], Check], ...] = (
    check_system,
    check_chip,
    check_module,
    check_firmware,
    check_kernel_log,
    check_parameters,
    check_container,
    check_device_node,
    check_permission,
    check_group,
    check_level_zero,
    check_driver,
    check_packages,
    check_release,
    check_openvino,
    check_plugin,
    check_compiler,
    check_serving,
)


def run_checks(machine: Machine) -> tuple[Check, ...]:
    """All checks, from the chip up to what serves."""
    return tuple(check(machine) for check in CHECKS)


def _driver_version(machine: Machine) -> str:
    """Of the package, else of the library's file, such as ``1.32.0``; empty where neither tells."""
    driver = machine.libraries.get(DRIVER) or machine.libraries.get(OLD_DRIVER)
    told = machine.packages.get("intel-level-zero-npu") or (driver.version if driver else "")
    numbers = version_numbers(told)[:3]
    return ".".join(map(str, numbers)) if len(numbers) == 3 else ""


def _with_version(path: str, version: str) -> str:
    return f"{path}, version {version}" if version else path


def _listed(names: list[str] | tuple[str, ...], joined_by: str = "and") -> str:
    return f" {joined_by} ".join(names)
