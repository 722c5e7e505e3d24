import importlib.metadata
from dataclasses import replace

import pytest

from npu_runtime.doctor import checks
from npu_runtime.doctor.checks import CHECKS, run_checks
from npu_runtime.doctor.machine import AccelNode, Chip, Library, Serving, User
from npu_runtime.doctor.report import Status

LOADER, DRIVER, OLD = "libze_loader.so", "libze_intel_npu.so", "libze_intel_vpu.so"
COMPILER, NEW_COMPILER = "libnpu_driver_compiler.so", "libopenvino_intel_npu_compiler_loader.so"


def without(machine, *names):
    left = {name: value for name, value in machine.libraries.items() if name not in names}
    return replace(machine, libraries=left)


def node(**changes):
    given = {"path": "/dev/accel/accel0", "driver": "intel_vpu", "group": "render", "mode": 0o660}
    return AccelNode(**(given | {"is_usable": False} | changes))


def test_nothing_is_wrong_with_a_machine_whose_npu_serves(healthy):
    results = run_checks(healthy)
    assert {result.status for result in results} == {Status.OK}
    assert all(result.fix == "" for result in results)


def test_checks_have_names_of_their_own(healthy):
    names = [result.name for result in run_checks(healthy)]
    assert len(set(names)) == len(CHECKS)


def test_without_a_chip_only_the_chip_and_the_outcome_are_problems(without_npu):
    problems = [result for result in run_checks(without_npu) if result.status is Status.PROBLEM]
    assert [result.name for result in problems] == ["chip", "npu"]
    assert "Without an NPU there is nothing to repair" in problems[0].fix


def test_every_problem_has_a_fix(healthy, without_npu):
    broken = replace(
        without_npu, chips=healthy.chips, openvino="", openvino_libraries=(), container="Docker"
    )
    for result in run_checks(broken):
        assert (result.fix != "") == (result.status in (Status.PROBLEM, Status.NOTE)), result


def test_wsl_is_a_problem_that_hides_the_chip(without_npu):
    machine = replace(without_npu, is_wsl=True)
    assert checks.check_system(machine).status is Status.PROBLEM
    assert "Windows" in checks.check_system(machine).found
    assert checks.check_chip(machine).status is Status.SKIPPED


@pytest.mark.parametrize(
    "kernel, status",
    [("6.6.0", Status.OK), ("6.5.13-1-generic", Status.PROBLEM), ("5.15.0", Status.PROBLEM),
     ("7.0.1", Status.OK), ("6.18.44-fc", Status.OK)],
)  # fmt: skip
def test_kernels_from_6_6_on_have_the_driver(healthy, kernel, status):
    result = checks.check_system(replace(healthy, kernel=kernel))
    assert result.status is status
    assert kernel in result.found


def test_a_container_without_the_device_is_started_with_it(healthy):
    machine = replace(healthy, container="Docker", nodes=())
    result = checks.check_container(machine)
    assert result.status is Status.PROBLEM
    assert "--device /dev/accel/accel0" in result.fix
    assert "container" in checks.check_device_node(machine).fix


def test_a_container_with_the_device_is_fine(healthy):
    result = checks.check_container(replace(healthy, container="Podman"))
    assert result.status is Status.OK
    assert "Podman" in result.found


@pytest.mark.parametrize(
    "missing, fix",
    [({"nodes": ()}, "udevadm trigger"), ({"nodes": (), "kernel_devices": ()}, "kernel module")],
    ids=["no file by udev", "no device of the kernel"],
)
def test_a_missing_device_is_made_by_udev_or_by_the_kernel(healthy, missing, fix):
    result = checks.check_device_node(replace(healthy, **missing))
    assert result.status is Status.PROBLEM
    assert fix in result.fix


def test_another_makers_accelerator_is_no_npu(healthy):
    result = checks.check_device_node(
        replace(healthy, nodes=(node(driver="habanalabs", is_usable=True),))
    )
    assert result.status is Status.PROBLEM
    assert "/dev/accel/accel0 (habanalabs)" in result.found


def test_a_closed_device_of_a_group_asks_for_the_group(healthy):
    user = User("ada", False, frozenset({"ada"}), frozenset())
    machine = replace(healthy, nodes=(node(),), user=user)
    permission, group = checks.check_permission(machine), checks.check_group(machine)
    assert permission.status is Status.PROBLEM
    assert "mode 660, group render" in permission.found
    assert group.status is Status.PROBLEM
    assert "sudo usermod --append --groups render ada" in group.fix


@pytest.mark.parametrize("changes", [{"group": "root"}, {"mode": 0o600}])
def test_a_device_that_is_roots_alone_gets_a_rule(healthy, changes):
    result = checks.check_permission(replace(healthy, nodes=(node(**changes),)))
    assert result.status is Status.PROBLEM
    assert 'SUBSYSTEM=="accel", KERNEL=="accel*", GROUP="render", MODE="0660"' in result.fix


def test_permission_is_not_asked_without_a_device(without_npu):
    assert checks.check_permission(without_npu).status is Status.SKIPPED


def test_a_new_member_of_the_group_logs_in_again(healthy):
    user = User("ada", False, frozenset({"ada"}), frozenset({"render"}))
    result = checks.check_group(replace(healthy, nodes=(node(),), user=user))
    assert result.status is Status.PROBLEM
    assert result.fix == "Log out and in again."


def test_the_devices_own_group_counts(healthy):
    user = User("ada", False, frozenset({"ada"}), frozenset())
    result = checks.check_group(replace(healthy, nodes=(node(group="video"),), user=user))
    assert "--groups video ada" in result.fix


def test_who_may_use_the_device_needs_no_group(healthy):
    user = User("ada", False, frozenset({"ada"}), frozenset())
    assert checks.check_group(replace(healthy, user=user)).status is Status.OK


def test_root_needs_no_group(healthy):
    user = User("root", True, frozenset({"root"}), frozenset())
    assert checks.check_group(replace(healthy, user=user, nodes=())).status is Status.OK


def test_the_level_zero_loader_is_installed(healthy):
    result = checks.check_level_zero(without(healthy, LOADER))
    assert result.status is Status.PROBLEM
    assert "libze1" in result.fix


@pytest.mark.parametrize(
    "version, status",
    [("1.17.16", Status.PROBLEM), ("1.17.17", Status.OK), ("1.9.0", Status.PROBLEM),
     ("1", Status.OK), ("", Status.OK)],
)  # fmt: skip
def test_an_old_loader_does_not_know_the_drivers_new_name(healthy, version, status):
    libraries = dict(healthy.libraries) | {LOADER: Library("/usr/lib/libze_loader.so.1", version)}
    result = checks.check_level_zero(replace(healthy, libraries=libraries))
    assert result.status is status


def test_an_old_loader_goes_with_the_drivers_old_name(healthy):
    libraries = dict(without(healthy, DRIVER).libraries)
    libraries |= {
        LOADER: Library("/l", "1.17.0"),
        OLD: Library("/usr/lib/libze_intel_vpu.so.1", ""),
    }
    machine = replace(healthy, libraries=libraries)
    assert checks.check_level_zero(machine).status is Status.OK
    assert checks.check_driver(machine).status is Status.OK


@pytest.mark.parametrize(
    "check, library, package",
    [
        (checks.check_driver, DRIVER, "intel-level-zero-npu"),
        (checks.check_compiler, COMPILER, "intel-driver-compiler-npu"),
    ],
)
def test_the_package_of_a_missing_library_is_named(healthy, check, library, package):
    result = check(without(healthy, library))
    assert result.status is Status.PROBLEM
    assert package in result.fix


def test_a_driver_left_over_is_removed(healthy):
    libraries = dict(healthy.libraries) | {OLD: Library("/usr/lib/libze_intel_vpu.so.1", "")}
    result = checks.check_driver(replace(healthy, libraries=libraries))
    assert result.status is Status.NOTE
    assert "Remove /usr/lib/libze_intel_vpu.so.1" in result.fix


def test_parts_of_two_releases_are_noted(healthy):
    packages = {"intel-fw-npu": "1.30.0", "intel-level-zero-npu": "1.32.0"}
    result = checks.check_packages(replace(healthy, packages=packages))
    assert result.status is Status.NOTE
    assert "intel-fw-npu 1.30.0, intel-level-zero-npu 1.32.0" in result.found


def test_packages_that_dpkg_does_not_know_are_not_judged(healthy):
    assert checks.check_packages(replace(healthy, packages={})).status is Status.SKIPPED


@pytest.mark.parametrize(
    "version, status",
    [("", Status.PROBLEM), ("2025.4.0", Status.PROBLEM), ("2026.3.0", Status.PROBLEM),
     ("2026.4.0", Status.OK), ("2026.4.10", Status.OK), ("2026.10.0", Status.PROBLEM)],
)  # fmt: skip
def test_openvino_must_be_of_the_range_that_the_wheel_declares(healthy, version, status):
    result = checks.check_openvino(replace(healthy, openvino=version))
    assert result.status is status
    if status is Status.PROBLEM:
        declared = importlib.metadata.requires("npu-runtime")
        assert declared is not None
        asked = next(line for line in declared if line.startswith("openvino"))
        specifiers = set(asked.removeprefix("openvino").split(","))
        quoted = result.fix.split('"')[1].removeprefix("openvino")
        assert set(quoted.split(",")) == specifiers


def test_an_openvino_without_the_npu_plugin_is_replaced(healthy):
    result = checks.check_plugin(replace(healthy, openvino_libraries=("libopenvino_c.so",)))
    assert result.status is Status.PROBLEM
    assert "PyPI" in result.fix
    missing = replace(healthy, openvino="", openvino_libraries=())
    assert checks.check_plugin(missing).status is Status.SKIPPED


def test_a_compiler_in_the_wheel_is_enough(healthy):
    machine = without(healthy, COMPILER)
    machine = replace(machine, openvino_libraries=(*healthy.openvino_libraries, NEW_COMPILER))
    assert checks.check_compiler(machine).status is Status.OK


def test_a_compiler_that_the_driver_does_not_ask_for_is_no_match(healthy):
    result = checks.check_compiler(replace(healthy, driver_compilers=(NEW_COMPILER,)))
    assert result.status is Status.PROBLEM
    assert f"the driver asks for {NEW_COMPILER}; installed is {COMPILER}" in result.found


def test_a_driver_that_does_not_tell_takes_any_compiler(healthy):
    assert checks.check_compiler(replace(healthy, driver_compilers=())).status is Status.OK


def test_the_cpu_serving_instead_is_a_problem(healthy):
    machine = replace(healthy, serving=Serving("CPU", "Core Ultra", "OpenVINO finds no NPU"))
    result = checks.check_serving(machine)
    assert result.status is Status.PROBLEM
    assert "CPU serves (Core Ultra)" in result.found
    assert "ZE_INTEL_NPU_LOGLEVEL" in result.fix


def test_the_cpu_serving_on_request_is_a_note(healthy):
    machine = replace(
        healthy, requested_device="CPU", serving=Serving("CPU", "Core Ultra", "NPU_DEVICE says so")
    )
    result = checks.check_serving(machine)
    assert result.status is Status.NOTE
    assert "Unset NPU_DEVICE" in result.fix


@pytest.mark.parametrize("asked, fix", [("NPU", "Unset NPU_DEVICE=NPU."), ("", "OpenVINO")])
def test_nothing_serving_is_a_problem(healthy, asked, fix):
    machine = replace(healthy, requested_device=asked, serving=Serving("", "", "no device"))
    result = checks.check_serving(machine)
    assert result.status is Status.PROBLEM
    assert fix in result.fix


def test_a_wrong_setting_is_to_be_corrected_first(healthy):
    serving = Serving("", "", "NPU_STRICT must be 1 or 0, got 'x'.", "bad-setting")
    result = checks.check_serving(replace(healthy, serving=serving))
    assert result.status is Status.PROBLEM
    assert result.found.startswith("NPU_STRICT")
    assert result.fix == "Correct this variable first."


def test_an_unknown_accelerator_is_told_by_its_id(without_npu):
    machine = replace(without_npu, unknown_accelerators=("8086:beef at 0000:00:0b.0",))
    result = checks.check_chip(machine)
    assert result.status is Status.PROBLEM
    assert "8086:beef at 0000:00:0b.0" in result.found
    assert "npu-runtime collect-env --share" in result.fix


def released(machine, version):
    return replace(machine, packages={"intel-level-zero-npu": version})


@pytest.mark.parametrize(
    "version, status, said",
    [("1.0.0", Status.PROBLEM, "asks for 1.1.0 or later"),
     ("1.24.0.20251003", Status.NOTE, "made with OpenVINO 2025.3; 2026.4.1 is installed"),
     ("1.32.0", Status.OK, "1.32.0"), ("1.99.0", Status.OK, "1.99.0")],
)  # fmt: skip
def test_an_old_driver_for_a_new_openvino_is_replaced(healthy, version, status, said):
    result = checks.check_release(released(healthy, version))
    assert result.status is status
    assert said in result.found
    assert ("Install release 1.38.0" in result.fix) == (status is not Status.OK)


def test_a_chip_that_is_newer_than_the_driver_needs_a_newer_one(healthy):
    chip = Chip("0000:00:0b.0", "Panther Lake", "50xx", "intel_vpu", "0xb03e", "1.28.0")
    result = checks.check_release(released(replace(healthy, chips=(chip,)), "1.26.0"))
    assert result.status is Status.PROBLEM
    assert "Panther Lake is supported from 1.28.0 on" in result.found


def test_a_driver_without_a_package_has_the_version_of_its_file(healthy):
    assert checks.check_release(replace(healthy, packages={})).found == "1.32.0"
    nameless = without(replace(healthy, packages={}), DRIVER)
    assert checks.check_release(nameless).status is Status.SKIPPED


SLOT = "intel_vpu 0000:00:0b.0:"


def test_a_module_that_is_not_loaded_is_loaded(healthy):
    result = checks.check_module(replace(healthy, has_module=False))
    assert result.status is Status.PROBLEM
    assert "sudo modprobe intel_vpu" in result.fix


def test_a_kernel_without_the_module_needs_its_other_modules(healthy):
    result = checks.check_module(replace(healthy, has_module=False, has_module_file=False))
    assert result.status is Status.PROBLEM
    assert "linux-modules-extra" in result.fix


def test_missing_firmware_is_named_by_generation(healthy):
    result = checks.check_firmware(
        replace(healthy, kernel_devices=(), firmware=("vpu_40xx_v1.bin",))
    )
    assert result.status is Status.PROBLEM
    assert "vpu_37xx*.bin" in result.found
    assert "intel-fw-npu" in result.fix


def test_firmware_that_did_not_start_is_a_note(healthy):
    result = checks.check_firmware(replace(healthy, kernel_devices=()))
    assert result.status is Status.NOTE
    assert "dmesg" in result.fix


def test_firmware_that_started_is_named_with_its_version(healthy):
    result = checks.check_firmware(healthy)
    assert result.status is Status.OK
    assert "intel/vpu/vpu_37xx_v0.0.bin, version 20250306" in result.found
    silent = checks.check_firmware(replace(healthy, log=()))
    assert silent.found == "the kernel started the NPU with it"


def test_a_chip_that_the_kernel_does_not_know_needs_a_newer_kernel(healthy):
    chip = Chip("0000:00:0b.0", "Panther Lake", "50xx", "", "0xb03e")
    result = checks.check_module(replace(healthy, chips=(chip,)))
    assert result.status is Status.PROBLEM
    assert "does not know Panther Lake (0xb03e)" in result.found
    assert "newer kernel" in result.fix
    untold = replace(healthy, chips=(chip,), module_ids=frozenset())
    assert checks.check_module(untold).status is Status.OK


# The first as https://github.com/intel/linux-npu-driver/issues/31 has it; the others are made of
# the sentences of drivers/accel/ivpu/ivpu_fw.c and ivpu_drv.c.
@pytest.mark.parametrize(
    "lines, meaning, fix",
    [
        (
            [
                f"{SLOT} enabling device (0000 -> 0002)",
                f"{SLOT} [drm] *ERROR* ivpu_fw_request(): Failed to request firmware: -2",
                f"{SLOT} [drm] *ERROR* ivpu_dev_init(): Failed to initialize firmware: -2",
            ],
            "the firmware file is missing",
            "Install intel-fw-npu",
        ),
        (
            [f"{SLOT} [drm] *ERROR* ivpu_fw_check_api(): Incompatible FW BOOT API version: 2.4"],
            "too old for this kernel",
            "newest release",
        ),
        (
            [f"{SLOT} [drm] *ERROR* ivpu_fw_parse(): Firmware file is too small: 12"],
            "damaged",
            "--reinstall",
        ),
        (
            [f"{SLOT} [drm] *ERROR* ivpu_boot(): Failed to boot the firmware: -110"],
            "does not start",
            "BIOS",
        ),
        (
            [f"{SLOT} [drm] *ERROR* ivpu_fw_request(): Failed to request firmware: -22"],
            "cannot be loaded",
            "intel-fw-npu",
        ),
        (
            [f"{SLOT} probe with driver intel_vpu failed with error -19"],
            "could not start the NPU",
            "sudo dmesg",
        ),
    ],
)
def test_a_message_of_the_kernel_tells_what_is_wrong(healthy, lines, meaning, fix):
    log = tuple(f"[    4.44{index}] {line}" for index, line in enumerate(lines))
    result = checks.check_kernel_log(replace(healthy, kernel_devices=(), log=log))
    assert result.status is Status.PROBLEM
    assert meaning in result.found
    assert fix in result.fix


def test_the_cause_goes_before_what_follows_from_it(healthy):
    log = (
        f"{SLOT} [drm] *ERROR* ivpu_fw_request(): Failed to request firmware: -2",
        f"{SLOT} probe with driver intel_vpu failed with error -2",
    )
    result = checks.check_kernel_log(replace(healthy, kernel_devices=(), log=log))
    assert "the firmware file is missing" in result.found


def test_a_failure_before_a_start_that_went_well_is_of_no_account(healthy):
    failed = f"{SLOT} [drm] *ERROR* ivpu_fw_request(): Failed to request firmware: -2"
    result = checks.check_kernel_log(replace(healthy, log=(failed, *healthy.log)))
    assert result.status is Status.OK


def test_a_failure_after_it_is_a_note_while_the_device_is_there(healthy):
    failed = f"{SLOT} [drm] *ERROR* ivpu_boot(): Failed to boot the firmware: -110"
    result = checks.check_kernel_log(replace(healthy, log=(*healthy.log, failed)))
    assert result.status is Status.NOTE


def test_messages_that_cannot_be_read_are_not_judged(healthy):
    assert checks.check_kernel_log(replace(healthy, log=())).status is Status.SKIPPED


@pytest.mark.parametrize(
    "changed, status",
    [({"test_mode": "2"}, Status.PROBLEM), ({"firmware": "my.bin"}, Status.NOTE),
     ({"pll_max_ratio": "20"}, Status.NOTE), ({"disable_mmu_cont_pages": "Y"}, Status.NOTE),
     ({"dbg_mask": "7"}, Status.OK)],
)  # fmt: skip
def test_parameters_that_change_what_the_npu_does_are_told(healthy, changed, status):
    result = checks.check_parameters(replace(healthy, parameters={"test_mode": "0"} | changed))
    assert result.status is status
    if status is not Status.OK:
        assert "=".join(*changed.items()) in result.found
        assert "sudo rmmod intel_vpu && sudo modprobe intel_vpu" in result.fix
