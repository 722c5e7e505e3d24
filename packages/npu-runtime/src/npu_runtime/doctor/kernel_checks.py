"""The doctor's checks of the kernel's side: module, firmware, messages and parameters.

Messages and parameters are those of Linux' drivers/accel/ivpu.
"""

import re

from npu_runtime.doctor.machine import Machine, log_faults
from npu_runtime.doctor.report import RELEASES, Check, needless, note, ok, problem, skipped

__all__ = [
    "check_firmware",
    "check_kernel_log",
    "check_module",
    "check_parameters",
    "last_firmware",
]

_RELOAD = "sudo rmmod intel_vpu && sudo modprobe intel_vpu"
_STARTED = re.compile(r"Firmware: (\S+), version: (\S+)")
_AS_SHIPPED = {
    "test_mode": ("0",),
    "firmware": ("(null)", ""),
    "pll_max_ratio": ("255",),
    "disable_mmu_cont_pages": ("N", "0"),
}
# With these the NPU computes nothing; with the others it is another one or a slower one.
_WITHOUT_RESULTS = ("test_mode",)


def check_module(machine: Machine) -> Check:
    """The kernel's driver."""
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
    """What the kernel loads into the chip. A device that the kernel made has started with it."""
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
    """What the kernel said of the NPU since it last started."""
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
    """Parameters of the module that are not as the kernel sets them."""
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
    """File and version of the firmware that the kernel loaded last; empty where it is not told."""
    for line in reversed(log):
        if found := _STARTED.search(line):
            return f"{found[1]}, version {found[2].partition('*')[0]}"
    return ""


def _last_attempt(log: tuple[str, ...]) -> tuple[str, ...]:
    """The messages since the driver last took the device, or since it started it well."""
    marks = ("enabling device", "Initialized intel_vpu")
    starts = [index for index, line in enumerate(log) if any(mark in line for mark in marks)]
    return log[starts[-1] + 1 :] if starts else log


def _message(line: str) -> str:
    """A message of the kernel without its time and its device."""
    return line[line.index("intel_vpu") :].partition(": ")[2].strip() or line
