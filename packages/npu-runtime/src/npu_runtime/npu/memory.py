"""Memory of ``torch.npu``: what is allocated, reserved and free.

The pool that counts is native (csrc/memory/pool.cpp).
"""

from collections import OrderedDict
from typing import Any

from npu_runtime import _C
from npu_runtime.npu.device import DeviceLike, device_index

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]


def memory_stats(device: DeviceLike = None) -> "OrderedDict[str, int]":
    """Counters of the pool, under the names of ``torch.cuda.memory_stats``.

    For example ``allocated_bytes.all.peak``. Counts are blocks or segments, sizes are bytes.
    """
    flat: list[tuple[str, int]] = []

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat.append((prefix, value))

    flatten("", _C.memory_stats(device_index(device)))
    return OrderedDict(sorted(flat))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that tensors hold now."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Most bytes that tensors held since the start or the last ``reset_peak_memory_stats``."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes that the pool has from the system, used and free."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Most bytes that the pool had since the start or the last ``reset_peak_memory_stats``."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts the peaks again from what is in use now."""
    _C.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Starts the counters of all that was ever allocated and freed again from 0."""
    _C.reset_accumulated_memory_stats(device_index(device))


def empty_cache() -> None:
    """Gives the memory of freed tensors back to the system; the next allocations are slower."""
    _C.empty_cache()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of a device, which are the machine's: they share its memory."""
    return _C.memory_info(device_index(device))


def memory_summary(device: DeviceLike = None) -> str:
    """A table of current and peak use for people."""
    stats = memory_stats(device)
    rows = [
        ("allocated by tensors", "allocated_bytes", 2**20, "MiB"),
        ("asked for by tensors", "requested_bytes", 2**20, "MiB"),
        ("reserved by the pool", "reserved_bytes", 2**20, "MiB"),
        ("blocks in use", "allocation", 1, ""),
        ("segments", "segment", 1, ""),
    ]
    lines = [f"memory of npu:{device_index(device)}", f"{'':24}{'current':>14}{'peak':>14}"]
    for label, key, unit, suffix in rows:
        current, peak = stats[f"{key}.all.current"] / unit, stats[f"{key}.all.peak"] / unit
        digits = 1 if suffix else 0
        lines.append(f"{label:24}{current:>14,.{digits}f}{peak:>14,.{digits}f} {suffix}".rstrip())
    lines.append(f"{'out of memory, times':24}{stats['num_ooms']:>14}")
    return "\n".join(lines)
