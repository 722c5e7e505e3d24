"""The kernel's side: its module, firmware, messages and parameters."""

from dataclasses import replace

import pytest

from npu_runtime.doctor import kernel_checks as checks
from npu_runtime.doctor.machine import Chip
from npu_runtime.doctor.report import Status

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
