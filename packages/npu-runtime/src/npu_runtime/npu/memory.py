"""Memory of ``torch.npu``: what is allocated, reserved and free, on the device and pinned.

The pools that count are native (csrc/memory/pool.cpp).
"""

import warnings
from collections import OrderedDict
from typing import Any

from typing_extensions import deprecated

from npu_runtime import _C, sensors
from npu_runtime.errors import InputError
from npu_runtime.npu.device import DeviceLike, device_index
from npu_runtime.npu.memory_history import (
    _dump_snapshot as _dump_snapshot,
)
from npu_runtime.npu.memory_history import (
    _record_memory_history as _record_memory_history,
)
from npu_runtime.npu.memory_history import (
    _snapshot as _snapshot,
)
from npu_runtime.npu.memory_history import (
    memory_snapshot,
    record_memory_history,
)
from npu_runtime.npu.memory_pools import (
    MemPool,
    caching_allocator_alloc,
    caching_allocator_delete,
    caching_allocator_disabled,
    caching_allocator_enable,
    get_allocator_backend,
    use_mem_pool,
)
from npu_runtime.public_calls import public_call

__all__ = [
    "MemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "record_memory_history",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]

# The share of each device's memory that the pool may have, where it was limited.
_fractions: dict[int, float] = {}


def memory_stats(device: DeviceLike = None) -> "OrderedDict[str, int]":
    """Counters of the pool, under the names of ``torch.cuda.memory_stats``.

    For example ``allocated_bytes.all.peak``. Counts are blocks or segments, sizes are bytes.
    """
    return _flat(memory_stats_as_nested_dict(device))


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


def host_memory_stats() -> "OrderedDict[str, int]":
    """Counters of pinned memory, under the names of ``torch.cuda.host_memory_stats``.

    ``allocations`` and ``allocated_bytes`` count blocks in use and kept, ``active_requests`` and
    ``active_bytes`` those in use; each has ``current``, ``peak``, ``allocated`` and ``freed``.
    Sizes are bytes, rounded up to a power of two; times are microseconds.
    """
    return _flat(host_memory_stats_as_nested_dict())


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """The counters of :func:`host_memory_stats`, by name and kind."""
    return _C.host_memory_stats()


def reset_accumulated_host_memory_stats() -> None:
    """Starts the counters of all that was ever pinned and freed again from 0."""
    _C.reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Starts the peaks of pinned memory again from what is in use now."""
    _C.reset_peak_host_memory_stats()


@deprecated(
    "`torch.npu.memory_cached` is the old name of `torch.npu.memory_reserved`",
    category=FutureWarning,
)
def memory_cached(device: DeviceLike = None) -> int:
    """Deprecated: see :func:`memory_reserved`."""
    return memory_reserved(device)


@deprecated(
    "`torch.npu.max_memory_cached` is the old name of `torch.npu.max_memory_reserved`",
    category=FutureWarning,
)
def max_memory_cached(device: DeviceLike = None) -> int:
    """Deprecated: see :func:`max_memory_reserved`."""
    return max_memory_reserved(device)


def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """Deprecated: resets all peaks, as :func:`reset_peak_memory_stats` does, and warns of it."""
    _reset_all_peaks("reset_max_memory_allocated", device)


def reset_max_memory_cached(device: DeviceLike = None) -> None:
    """Deprecated: resets all peaks, as :func:`reset_peak_memory_stats` does, and warns of it."""
    _reset_all_peaks("reset_max_memory_cached", device)


def empty_cache() -> None:
    """Gives the memory of freed tensors back to the system; the next allocations are slower.

    Pinned memory is given back by ``torch.accelerator.empty_host_cache``.
    """
    _C.empty_cache()


def list_gpu_processes(device: DeviceLike = None) -> str:
    """The processes that have the NPU open, a line for each; those of other users for root."""
    index = device_index(device)
    found = sensors.processes(index)
    lines = [f"process {number:>10d} ({name})" for number, name in found.items()]
    return "\n".join([f"NPU:{index}", *(lines or ["no processes are running"])])


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of a device, which are the machine's: they share its memory."""
    return _C.memory_info(device_index(device))


@public_call
def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """A table of current and peak use for people.

    Args:
        device: the device; the current one by default.
        abbreviated: leave out the counts of blocks, segments and failures.
    """
    stats = memory_stats(device)
    rows = [
        ("allocated by tensors", "allocated_bytes", 2**20, "MiB"),
        ("asked for by tensors", "requested_bytes", 2**20, "MiB"),
        ("reserved by the pool", "reserved_bytes", 2**20, "MiB"),
    ]
    if not abbreviated:
        rows += [("blocks in use", "allocation", 1, ""), ("segments", "segment", 1, "")]
    lines = [f"memory of npu:{device_index(device)}", f"{'':24}{'current':>14}{'peak':>14}"]
    for label, key, unit, suffix in rows:
        current, peak = stats[f"{key}.all.current"] / unit, stats[f"{key}.all.peak"] / unit
        digits = 1 if suffix else 0
        lines.append(f"{label:24}{current:>14,.{digits}f}{peak:>14,.{digits}f} {suffix}".rstrip())
    if not abbreviated:
        lines.append(f"{'out of memory, times':24}{stats['num_ooms']:>14}")
    return "\n".join(lines)


@public_call
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
            code="memory-fraction",
        )
    index = device_index(device)
    _C.set_memory_limit(index, int(fraction * mem_get_info(index)[1]))
    _fractions[index] = float(fraction)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The share that :func:`set_per_process_memory_fraction` set; 1.0 where nothing is limited."""
    index = device_index(device)
    _C.memory_info(index)  # refuses a device that does not exist
    return _fractions.get(index, 1.0)


def _flat(nested: dict[str, Any]) -> "OrderedDict[str, int]":
    """Sorted, with the keys of each level joined by points."""
    flat: list[tuple[str, int]] = []

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat.append((prefix, value))

    flatten("", nested)
    return OrderedDict(sorted(flat))


def _reset_all_peaks(name: str, device: DeviceLike) -> None:
    warnings.warn(
        f"torch.npu.{name} resets all peaks of memory; torch.npu.reset_peak_memory_stats says so.",
        FutureWarning,
        stacklevel=3,
    )
    reset_peak_memory_stats(device)
