"""A machine whose NPU serves, which the tests then break in one place each."""

from dataclasses import replace

import pytest

from npu_runtime.doctor.machine import AccelNode, Chip, Library, Machine, Serving, User


@pytest.fixture
def healthy() -> Machine:
    release = "1.32.0.20260402-23905121947"
    return Machine(
        kernel="6.8.0-45-generic",
        is_wsl=False,
        container="",
        chips=(Chip("0000:00:0b.0", "Meteor Lake", "37xx", "intel_vpu"),),
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
        serving=Serving("CPU", "AMD EPYC", "OpenVINO finds no NPU on this machine"),
    )
