"""Whole machines as trees of files: the doctor's first finding, and exit codes."""

from pathlib import Path

import pytest

from npu_runtime.doctor import exit_code, read_machine, run_checks
from npu_runtime.doctor.machine import Serving, User
from npu_runtime.doctor.report import Check, Status

KERNEL = "6.11.0-21-generic"
LOG = (
    "[    4.441778] intel_vpu 0000:00:0b.0: enabling device (0000 -> 0002)\n"
    "[    4.452181] intel_vpu 0000:00:0b.0: [drm] Firmware: intel/vpu/vpu_40xx_v0.0.bin, version: "
    "20250415*LNL_CLIENT_SILICON-release*1900*ci_tag\n"
    "[    4.535283] [drm] Initialized intel_vpu 1.0.0 for 0000:00:0b.0 on minor 0\n"
)
NO_FIRMWARE = (
    "[    4.441778] intel_vpu 0000:00:0b.0: enabling device (0000 -> 0002)\n"
    "[    4.445538] intel_vpu 0000:00:0b.0: [drm] *ERROR* ivpu_fw_request(): Failed to request "
    "firmware: -2\n"
    "[    4.445600] intel_vpu 0000:00:0b.0: probe with driver intel_vpu failed with error -2\n"
)


class MachineTree:
    """A Lunar Lake laptop with Ubuntu; tests remove parts of it."""

    def __init__(self, root: Path):
        self.root = root
        self.user = User("ada", False, frozenset({"ada", "render"}), frozenset({"render"}))
        self.may_use, self.log = True, LOG
        self.serving = Serving("CPU", "Core Ultra", "OpenVINO finds no NPU")
        release = "1.32.0.20260402-23905121947"
        device = "sys/bus/pci/devices/0000:00:0b.0"
        modules = f"lib/modules/{KERNEL}"
        for name, text in {
            "proc/sys/kernel/osrelease": f"{KERNEL}\n",
            "proc/version": f"Linux version {KERNEL}\n",
            f"{device}/vendor": "0x8086\n",
            f"{device}/device": "0x643e\n",
            f"{device}/class": "0x120000\n",
            f"{modules}/modules.dep": "kernel/drivers/accel/ivpu/intel_vpu.ko.zst:\n",
            f"{modules}/modules.alias": ("alias pci:v00008086d0000643Esv*sd*bc*sc*i* intel_vpu\n"),
            "sys/module/intel_vpu/parameters/test_mode": "0\n",
            "lib/firmware/intel/vpu/vpu_40xx_v0.0.bin": "",
            "usr/lib/x86_64-linux-gnu/libze_loader.so.1.24.1": "",
            "usr/lib/x86_64-linux-gnu/libze_intel_npu.so.1.32.0": "libnpu_driver_compiler.so",
            "usr/lib/x86_64-linux-gnu/libnpu_driver_compiler.so": "",
            "var/lib/dpkg/status": "".join(
                f"Package: {name}\nStatus: install ok installed\nVersion: {release}\n\n"
                for name in ("intel-fw-npu", "intel-level-zero-npu", "intel-driver-compiler-npu")
            ),
        }.items():
            self.write(name, text)
        node = self.write("dev/accel/accel0", "")
        node.chmod(0o660)
        self.write("etc/group", f"render:x:{node.stat().st_gid}:ada\n")
        driver = root / "sys/bus/pci/drivers/intel_vpu"
        driver.mkdir(parents=True)
        (root / "sys/class/accel/accel0/device").mkdir(parents=True)
        for place in (device, "sys/class/accel/accel0/device"):
            (root / place / "driver").symlink_to(driver)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def remove(self, *names: str) -> None:
        for name in names:
            for path in sorted((self.root / name).rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            path = self.root / name
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

    def examine(self, *, require_npu: bool = False) -> tuple[int, dict[str, Check]]:
        machine = read_machine(
            self.root, user=self.user, may_use=lambda path: self.may_use, library_path="",
            serving=self.serving, read_log=lambda: self.log,
        )  # fmt: skip
        found = run_checks(machine)
        code = exit_code(machine, found, require_npu=require_npu)
        return code, {check.name: check for check in found if check.status is Status.PROBLEM}


@pytest.fixture
def tree(tmp_path):
    return MachineTree(tmp_path)


def first(problems: dict[str, Check]) -> Check:
    return next(iter(problems.values()))


def test_a_machine_that_lacks_nothing(tree):
    tree.serving = Serving("NPU", "Intel(R) AI Boost", "it is the machine's NPU")
    assert tree.examine(require_npu=True) == (0, {})


def test_firmware_that_is_missing(tree):
    tree.remove("lib/firmware", "dev/accel/accel0", "sys/class/accel/accel0")
    tree.log = NO_FIRMWARE
    code, problems = tree.examine()
    assert code == 1
    assert list(problems)[:2] == ["firmware", "kernel log"]
    assert "intel-fw-npu" in first(problems).fix
    assert "the firmware file is missing" in problems["kernel log"].found


def test_a_module_that_is_not_loaded(tree):
    tree.remove("sys/module/intel_vpu", "dev/accel/accel0", "sys/class/accel/accel0")
    tree.log = ""
    code, problems = tree.examine()
    assert code == 1
    assert "sudo modprobe intel_vpu" in first(problems).fix


def test_a_user_outside_of_the_group(tree):
    tree.user, tree.may_use = User("ada", False, frozenset({"ada"}), frozenset()), False
    code, problems = tree.examine()
    assert code == 1
    assert list(problems)[:2] == ["permission", "group"]
    assert "sudo usermod --append --groups" in problems["group"].fix


def test_a_driver_that_is_older_than_the_chip(tree):
    status = tree.root / "var/lib/dpkg/status"
    status.write_text(status.read_text().replace("1.32.0.20260402-23905121947", "1.2.0.20240404"))
    code, problems = tree.examine()
    assert code == 1
    assert "Lunar Lake is supported from 1.5.0 on" in first(problems).found
    assert "Install release" in first(problems).fix


def test_a_container_without_the_device(tree):
    tree.remove("dev/accel/accel0")
    tree.write(".dockerenv", "")
    tree.log = ""
    code, problems = tree.examine()
    assert code == 1
    assert first(problems).name == "container"
    assert "--device /dev/accel/accel0" in first(problems).fix


def test_windows_linux_passes_no_npu_through(tree):
    tree.remove("sys/bus/pci/devices/0000:00:0b.0", "dev/accel/accel0", "sys/class/accel/accel0")
    tree.write("proc/version", "Linux version 5.15.153.1-microsoft-standard-WSL2")
    code, problems = tree.examine()
    assert code == 1
    assert "Windows Subsystem for Linux" in first(problems).found


@pytest.mark.parametrize("require_npu, code", [(False, 0), (True, 1)])
def test_a_machine_without_a_known_npu_fails_where_one_is_required(tree, require_npu, code):
    tree.remove("dev/accel/accel0", "sys/class/accel/accel0", "sys/module/intel_vpu")
    tree.write("sys/bus/pci/devices/0000:00:0b.0/device", "0xbeef\n")
    ended, problems = tree.examine(require_npu=require_npu)
    assert ended == code
    assert "8086:beef at 0000:00:0b.0" in first(problems).found
