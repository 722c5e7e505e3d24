"""Memory of ``torch.npu``: what is allocated, reserved and free.

The pool that counts is native (csrc/memory/pool.cpp).
"""

from collections import OrderedDict
from typing import Any

from npu_runtime import _C
from npu_runtime.errors import InputError
from npu_runtime.npu.device import DeviceLike, device_index

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "record_memory_history",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
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

    flatten("", memory_stats_as_nested_dict(device))
    return OrderedDict(sorted(flat))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """The counters of :func:`memory_stats`, by name, pool and kind."""
    return _C.memory_stats(device_index(device))


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


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits what the pool may have from the system, as a share of the device's memory.

    An allocation beyond the limit is out of memory, after the cache was emptied.

    Raises:
        InputError: ``fraction`` is not in [0, 1] (code ``memory-fraction``).
    """
    if not 0.0 <= fraction <= 1.0:
        raise InputError(
            "torch.npu.set_per_process_memory_fraction: fraction must lie in [0, 1]; "
            f"got {fraction}. Pass 0.5 for half of the memory.",
            "memory-fraction",
        )
    index = device_index(device)
    _C.set_memory_limit(index, int(fraction * mem_get_info(index)[1]))


def record_memory_history(enabled: bool = True) -> None:
    """Starts or stops recording the Python stacks of allocations, for :func:`memory_snapshot`."""
    _C.set_memory_recording(enabled)


def memory_snapshot(device: DeviceLike = None) -> list[dict[str, Any]]:
    """The pool's segments with their blocks, by address.

    Each segment has ``device``, ``address``, ``total_size``, ``allocated_size``, ``active_size``,
    ``requested_size``, ``segment_type`` and ``blocks``; each block ``address``, ``size``,
    ``requested_size``, ``state`` (``active_allocated`` or ``inactive``) and ``frames``, the stack
    that allocated it where :func:`record_memory_history` was on. Sizes are bytes.
    """
    index = device_index(device)
    frames = {block["address"]: block["frames"] for block in _C.memory_live_blocks()}
    segments = _C.memory_segments(index)
    for segment in segments:
        for block in segment["blocks"]:
            block["frames"] = frames.get(block["address"], [])
    return segments
