"""Sensors of an Intel NPU on Linux: utilization, clock, memory, and processes.

The kernel driver intel_vpu provides them as files (drivers/accel/ivpu/ivpu_sysfs.c). It has no file
for power or temperature.
"""

import time
from pathlib import Path

from npu_runtime.errors import DeviceError
from npu_runtime.info import device_info

__all__ = [
    "busy_percent",
    "clock_rate_mhz",
    "memory_used_bytes",
    "processes",
]

_DRIVER = "intel_vpu"
_WINDOW_S = 0.2


def busy_percent(index: int, *, root: Path = Path("/"), window_s: float = _WINDOW_S) -> int:
    """Utilization of the NPU in percent, for jobs of all processes.

    Measures for `window_s` seconds. Like the functions below, raises [sensor-absent] if the kernel
    has no data for this device.
    """
    start, busy = time.monotonic_ns(), _counter(index, "npu_busy_time_us", "utilization", root)
    time.sleep(window_s)
    more = _counter(index, "npu_busy_time_us", "utilization", root) - busy
    passed_us = (time.monotonic_ns() - start) / 1000
    return min(100, round(100 * more / passed_us))


def clock_rate_mhz(index: int, *, root: Path = Path("/")) -> int:
    """Clock of the NPU in MHz; 0 while it sleeps."""
    return _counter(index, "npu_current_frequency_mhz", "clock_rate", root)


def memory_used_bytes(index: int, *, root: Path = Path("/")) -> int:
    """Bytes of system memory that the NPU's driver holds for the NPU, for all processes."""
    return _counter(index, "npu_memory_utilization", "device_memory_used", root)


def processes(index: int, *, root: Path = Path("/")) -> dict[int, str]:
    """Processes that have the NPU open: ids and names.

    Processes of other users are visible only to root.
    """
    node = f"/dev/accel/{_chip(index, 'list_gpu_processes', root).name}"
    found = {}
    for process in (root / "proc").iterdir():
        if process.name.isdigit() and _has_open(process, node):
            found[int(process.name)] = _text(process / "comm") or "?"
    return dict(sorted(found.items()))


def _counter(index: int, name: str, call: str, root: Path) -> int:
    chip = _chip(index, call, root)
    text = _text(chip / "device" / name)
    if text is None or not text.isdigit():
        raise DeviceError(
            f"torch.npu.{call}: this kernel's {_DRIVER} has no file {name} in "
            f"/sys/class/accel/{chip.name}/device. A newer Linux kernel has it.",
            code="sensor-absent",
        )
    return int(text)


def _chip(index: int, call: str, root: Path) -> Path:
    """Returns the directory of a device's node in /sys."""
    device = device_info(index)
    folder = root / "sys/class/accel"
    nodes = folder.iterdir() if folder.is_dir() else ()
    chips = [node for node in nodes if (node / "device" / "driver").resolve().name == _DRIVER]
    chips.sort(key=lambda node: (len(node.name), node.name))
    if device.driver != "openvino" or not device.device.startswith("NPU"):
        raise DeviceError(
            f"torch.npu.{call}: only an Intel NPU has this reading; {device.name} is "
            f"{device.device} of the driver {device.driver}. Run npu-runtime doctor to find why "
            "no NPU is in use.",
            code="sensor-absent",
        )
    if index >= len(chips):
        raise DeviceError(
            f"torch.npu.{call}: Linux's {_DRIVER} lists {len(chips)} NPUs in /sys/class/accel, "
            f"and this is number {index + 1}. Other systems have no such files.",
            code="sensor-absent",
        )
    return chips[index]


def _has_open(process: Path, node: str) -> bool:
    try:
        files = list((process / "fd").iterdir())
    except OSError:  # another user's process, or a finished one
        return False
    return any(_target(file) == node for file in files)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed in the meantime
        return ""


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
