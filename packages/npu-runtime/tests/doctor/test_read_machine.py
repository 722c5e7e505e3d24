"""Machines made of files below a temporary root."""

from pathlib import Path

import pytest

from npu_runtime.doctor.machine import Serving, User
from npu_runtime.doctor.read_machine import read_machine

USER = User("ada", False, frozenset({"ada"}), frozenset())


def write(root: Path, **files: str) -> None:
    """Writes files; ``__`` stands for a slash."""
    for name, text in files.items():
        write_at(root, name.replace("__", "/"), text)


def write_at(root: Path, name: str, text: str | bytes = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def link_driver(root: Path, device: str, driver: str) -> None:
    target = root / "sys/bus/pci/drivers" / driver
    target.mkdir(parents=True, exist_ok=True)
    (root / device).mkdir(parents=True, exist_ok=True)
    (root / device / "driver").symlink_to(target)


def read(root: Path, *, may_use: bool = True, library_path: str = "", log: str = ""):
    return read_machine(
        root,
        user=USER,
        may_use=lambda path: may_use,
        library_path=library_path,
        serving=Serving("CPU", "x", "y"),
        read_log=lambda: log,
    )


def test_an_empty_root_has_nothing(tmp_path):
    machine = read(tmp_path)
    assert machine.kernel == ""
    assert not machine.is_wsl
    assert machine.container == ""
    assert machine.chips == machine.nodes == machine.firmware == machine.kernel_devices == ()
    assert not machine.has_module
    assert not machine.has_module_file
    assert machine.libraries == machine.packages == {}


def test_chips_are_known_by_their_pci_id(tmp_path):
    bus = "sys/bus/pci/devices"
    write_at(tmp_path, f"{bus}/0000:00:0b.0/vendor", "0x8086\n")
    write_at(tmp_path, f"{bus}/0000:00:0b.0/device", "0x643e\n")
    link_driver(tmp_path, f"{bus}/0000:00:0b.0", "intel_vpu")
    write_at(tmp_path, f"{bus}/0000:00:0c.0/vendor", "0x1022\n")
    write_at(tmp_path, f"{bus}/0000:00:0c.0/device", "0x643e\n")
    (chip,) = read(tmp_path).chips
    assert (chip.slot, chip.product, chip.generation) == ("0000:00:0b.0", "Lunar Lake", "40xx")
    assert chip.driver == "intel_vpu"


def test_an_accelerator_of_intel_that_is_not_known_is_told(tmp_path):
    bus = "sys/bus/pci/devices"
    for slot, number, kind in (
        ("0000:00:0b.0", "0xbeef", "0x120000"),
        ("0000:00:0c.0", "0x7d1d", "0x120000"),
        ("0000:00:02.0", "0x7d55", "0x030000"),
    ):
        write_at(tmp_path, f"{bus}/{slot}/vendor", "0x8086\n")
        write_at(tmp_path, f"{bus}/{slot}/device", f"{number}\n")
        write_at(tmp_path, f"{bus}/{slot}/class", f"{kind}\n")
    assert read(tmp_path).unknown_accelerators == ("8086:beef at 0000:00:0b.0",)


def test_the_kernel_lists_the_chips_that_its_module_takes(tmp_path):
    write(tmp_path, proc__sys__kernel__osrelease="6.8.0\n")
    write_at(
        tmp_path,
        "lib/modules/6.8.0/modules.alias",
        "alias pci:v00008086d00007D1Dsv*sd*bc*sc*i* intel_vpu\n"
        "alias pci:v00008086d0000643Esv*sd*bc*sc*i* intel_vpu\n"
        "alias pci:v00008086d00007D55sv*sd*bc03sc*i* i915\n",
    )
    assert read(tmp_path).module_ids == {"0x7d1d", "0x643e"}


def test_parameters_and_messages_of_the_module_are_read(tmp_path):
    write_at(tmp_path, "sys/module/intel_vpu/parameters/test_mode", "0\n")
    log = "[1.0] intel_vpu 0000:00:0b.0: enabling device\n[1.1] usb 1-1: new device\n"
    machine = read(tmp_path, log=log)
    assert machine.parameters == {"test_mode": "0"}
    assert machine.log == ("[1.0] intel_vpu 0000:00:0b.0: enabling device",)


def test_the_module_is_seen_in_the_kernel_and_on_disk(tmp_path):
    write(tmp_path, proc__sys__kernel__osrelease="6.8.0-45-generic\n")
    write_at(
        tmp_path,
        "lib/modules/6.8.0-45-generic/modules.dep",
        "kernel/drivers/accel/ivpu/intel_vpu.ko.zst:\n",
    )
    machine = read(tmp_path)
    assert machine.has_module_file
    assert not machine.has_module
    (tmp_path / "sys/module/intel_vpu").mkdir(parents=True)
    assert read(tmp_path).has_module


def test_wsl_is_known_by_its_kernel(tmp_path):
    write(tmp_path, proc__version="Linux version 5.15.153.1-microsoft-standard-WSL2")
    assert read(tmp_path).is_wsl


@pytest.mark.parametrize(
    "name, text, kind",
    [
        (".dockerenv", "", "Docker"),
        ("run/.containerenv", "", "Podman"),
        ("proc/1/cgroup", "0::/kubepods/besteffort/pod1\n", "Kubernetes"),
        ("proc/1/cgroup", "0::/init.scope\n", ""),
    ],
)
def test_containers_leave_marks(tmp_path, name, text, kind):
    write_at(tmp_path, name, text)
    assert read(tmp_path).container == kind


def test_device_nodes_carry_group_mode_and_driver(tmp_path):
    node = write_at(tmp_path, "dev/accel/accel0")
    node.chmod(0o640)
    write(tmp_path, etc__group=f"render:x:{node.stat().st_gid}:ada\n")
    link_driver(tmp_path, "sys/class/accel/accel0/device", "intel_vpu")
    machine = read(tmp_path, may_use=False)
    (found,) = machine.nodes
    assert found.path == "/dev/accel/accel0"
    assert (found.group, found.mode, found.is_usable) == ("render", 0o640, False)
    assert found.driver == "intel_vpu"
    assert machine.kernel_devices == ("accel0",)
    assert machine.npu_nodes == machine.nodes


def test_another_makers_accelerator_is_not_the_npus(tmp_path):
    write_at(tmp_path, "dev/accel/accel0")
    link_driver(tmp_path, "sys/class/accel/accel0/device", "habanalabs")
    machine = read(tmp_path)
    assert machine.npu_nodes == ()
    assert machine.kernel_devices == ()


def test_firmware_is_found_compressed_too(tmp_path):
    write_at(tmp_path, "lib/firmware/intel/vpu/vpu_37xx_v1.bin.zst")
    assert read(tmp_path).firmware == ("vpu_37xx_v1.bin.zst",)


def test_libraries_carry_the_version_of_the_file_behind_the_link(tmp_path):
    real = write_at(tmp_path, "usr/lib/x86_64-linux-gnu/libze_loader.so.1.24.1")
    real.with_name("libze_loader.so.1").symlink_to(real.name)
    library = read(tmp_path).libraries["libze_loader.so"]
    assert library.path == "/usr/lib/x86_64-linux-gnu/libze_loader.so.1"
    assert library.version == "1.24.1"


def test_libraries_are_found_where_the_loader_looks(tmp_path):
    write_at(tmp_path, "opt/npu/lib/libze_intel_npu.so.1")
    write_at(tmp_path, "home/ada/libnpu_driver_compiler.so")
    assert read(tmp_path).libraries == {}
    write_at(tmp_path, "etc/ld.so.conf.d/npu.conf", "# the NPU\n/opt/npu/lib\n")
    libraries = read(tmp_path, library_path="/home/ada:").libraries
    assert libraries["libze_intel_npu.so"].path == "/opt/npu/lib/libze_intel_npu.so.1"
    assert libraries["libnpu_driver_compiler.so"].path == "/home/ada/libnpu_driver_compiler.so"


@pytest.mark.parametrize(
    "binary, compilers",
    [
        (b"\0libnpu_driver_compiler.so\0", ("libnpu_driver_compiler.so",)),
        (
            b"libopenvino_intel_npu_compiler_l\0oader.so libnpu_driver_compiler.so",
            ("libnpu_driver_compiler.so", "libopenvino_intel_npu_compiler_loader.so"),
        ),
        (b"nothing", ()),
    ],
)
def test_the_driver_names_the_compilers_it_opens(tmp_path, binary, compilers):
    write_at(tmp_path, "usr/lib/libze_intel_npu.so.1", binary)
    assert read(tmp_path).driver_compilers == compilers


def test_packages_that_were_removed_do_not_count(tmp_path):
    write_at(
        tmp_path,
        "var/lib/dpkg/status",
        "Package: intel-fw-npu\nStatus: install ok installed\nVersion: 1.32.0\n\n"
        "Package: intel-level-zero-npu\nStatus: deinstall ok config-files\nVersion: 1.1\n\n"
        "Package: bash\nStatus: install ok installed\nVersion: 5\n",
    )
    assert read(tmp_path).packages == {"intel-fw-npu": "1.32.0"}


def test_this_machine_can_be_read():
    machine = read_machine()
    assert machine.kernel
    assert machine.openvino.startswith("2026.")
    assert "libopenvino_intel_npu_plugin.so" in machine.openvino_libraries
    assert machine.user.name
    assert machine.serving.device
