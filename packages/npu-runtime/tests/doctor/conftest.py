"""A machine with a working NPU, which the tests then break in one place each."""

from dataclasses import replace

import pytest

from npu_runtime.doctor.machine import AccelNode, Chip, Library, Machine, Serving, User

# As https://github.com/intel/linux-npu-driver/issues/93 has them; the first is of no account, since
# the kernel asks for other names first.
STARTED = tuple(
    """\
[    4.445538] intel_vpu 0000:00:0b.0: firmware: failed to load vpu_37xx.bin (-2)
[    4.45] intel_vpu 0000:00:0b.0: [drm] Firmware: intel/vpu/vpu_37xx_v0.0.bin, version: 20250306*M
[    4.535283] [drm] Initialized intel_vpu 1.0.0 for 0000:00:0b.0 on minor 0
""".splitlines()
)


@pytest.fixture
def healthy() -> Machine:
    release = "1.32.0.20260402-23905121947"
    return Machine(
        kernel="6.8.0-45-generic",
        is_wsl=False,
        container="",
        chips=(Chip("0000:00:0b.0", "Meteor Lake", "37xx", "intel_vpu", "0x7d1d"),),
        has_module=True,
        has_module_file=True,
        kernel_devices=("accel0",),
        nodes=(AccelNode("/dev/accel/accel0", "intel_vpu", "render", 0o660, is_usable=True),),
        user=User("ada", False, frozenset({"ada", "render"}), frozenset({"render"})),
        firmware=("vpu_37xx_v1.bin",),
        libraries={
            "libze_loader.so": Library("/usr/lib/libze_loader.so.1", "1.24.1"),
            "libze_intel_npu.so": Library("/usr/lib/libze_intel_npu.so.1", "1.32.0"),
            "libnpu_driver_compiler.so": Library("/usr/lib/libnpu_driver_compiler.so", ""),
        },
        driver_compilers=("libnpu_driver_compiler.so",),
        packages={"intel-level-zero-npu": release, "intel-driver-compiler-npu": release},
        openvino="2026.4.1",
        openvino_libraries=("libopenvino_intel_npu_plugin.so",),
        requested_device="",
        serving=Serving("NPU", "Intel(R) AI Boost", "it is the machine's NPU"),
        module_ids=frozenset({"0x7d1d", "0x643e"}),
        parameters={"test_mode": "0", "firmware": "(null)", "pll_max_ratio": "255"},
        log=STARTED,
    )


@pytest.fixture
def without_npu(healthy: Machine) -> Machine:
    """A machine without the chip and without anything that belongs to it."""
    return replace(
        healthy,
        chips=(),
        has_module=False,
        has_module_file=False,
        kernel_devices=(),
        nodes=(),
        user=User("ada", False, frozenset({"ada"}), frozenset()),
        firmware=(),
        libraries={},
        driver_compilers=(),
        packages={},
        module_ids=frozenset(),
        parameters={},
        log=(),
        serving=Serving("CPU", "AMD EPYC", "OpenVINO finds no NPU on this machine"),
    )
