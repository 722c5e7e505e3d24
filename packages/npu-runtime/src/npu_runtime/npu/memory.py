"""Memory of ``torch.npu``: use and limits, pools, snapshots and their history.

The pools are native (csrc/memory/pool.cpp and csrc/memory/region.cpp), as is the history
(csrc/memory/trace.cpp). Snapshots have torch's format, for the viewer at pytorch.org/memory_viz.
"""

import contextlib
import pickle
import sys
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from typing_extensions import deprecated

from npu_runtime import _C, sensors
from npu_runtime.errors import InputError
from npu_runtime.npu.device import DeviceLike, device_index
from npu_runtime.npu.device import device as on_device
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

# Memory fraction of each limited device.
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
    """Returns the bytes allocated by tensors."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Returns the peak of allocated bytes since the start or ``reset_peak_memory_stats``."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: DeviceLike = None) -> int:
    """Returns the bytes reserved by the pool, used and free."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Returns the peak of reserved bytes since the start or ``reset_peak_memory_stats``."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Resets the peaks to the current values."""
    _C.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Resets the counters of allocated and freed memory to 0."""
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
    """Resets the counters of pinned and freed memory to 0."""
    _C.reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Resets the peaks of pinned memory to the current values."""
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
    """Deprecated: resets all peaks, as :func:`reset_peak_memory_stats` does, with a warning."""
    _reset_all_peaks("reset_max_memory_allocated", device)


def reset_max_memory_cached(device: DeviceLike = None) -> None:
    """Deprecated: resets all peaks, as :func:`reset_peak_memory_stats` does, with a warning."""
    _reset_all_peaks("reset_max_memory_cached", device)


def empty_cache() -> None:
    """Returns the memory of freed tensors to the system; the next allocations are slower.

    Pinned memory is returned by ``torch.accelerator.empty_host_cache``.
    """
    _C.empty_cache()


def list_gpu_processes(device: DeviceLike = None) -> str:
    """Lists the processes that have the NPU open, one per line; root sees all users'."""
    index = device_index(device)
    found = sensors.processes(index)
    lines = [f"process {number:>10d} ({name})" for number, name in found.items()]
    return "\n".join([f"NPU:{index}", *(lines or ["no processes are running"])])


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the free and total bytes of a device: those of the machine's shared memory."""
    return _C.memory_info(device_index(device))


@public_call
def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Formats current and peak use as a table.

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
    """Limits the pool to a fraction of the device's memory.

    An allocation beyond the limit empties the cache, then fails with an out-of-memory error.

    Raises:
        InputError: ``fraction`` is not in [0, 1] (code ``memory-fraction``).
    """
    if not 0.0 <= fraction <= 1.0:
        raise InputError(
            "torch.npu.set_per_process_memory_fraction: `fraction` must be in [0, 1], "
            f"got {fraction}. Pass 0.5 for half of the memory.",
            code="memory-fraction",
        )
    index = device_index(device)
    _C.set_memory_limit(index, int(fraction * mem_get_info(index)[1]))
    _fractions[index] = float(fraction)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """Returns the fraction of :func:`set_per_process_memory_fraction`; 1.0 if unlimited."""
    index = device_index(device)
    _C.memory_info(index)  # raises for an absent device
    return _fractions.get(index, 1.0)


def _flat(nested: dict[str, Any]) -> "OrderedDict[str, int]":
    """Flattens nested counters: sorted, with keys joined by dots."""
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
        f"torch.npu.{name} resets all peaks of memory; use torch.npu.reset_peak_memory_stats.",
        FutureWarning,
        stacklevel=3,
    )
    reset_peak_memory_stats(device)


_ALL_POOLS = (0, 0)
# More than any program's actions, and a size that fits every counter.
_NO_LIMIT = 2**62


@public_call
def record_memory_history(enabled: bool = True) -> None:
    """Starts or stops recording the Python stacks of allocations, for :func:`memory_snapshot`."""
    _C.set_memory_recording(enabled)


@public_call
def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """The pools' segments with their blocks, on all devices, by address.

    Each segment has ``device``, ``address``, ``total_size``, ``allocated_size``, ``active_size``,
    ``requested_size``, ``segment_type``, ``segment_pool_id`` and ``blocks``; each block
    ``address``, ``size``, ``requested_size``, ``state`` (``active_allocated`` or ``inactive``) and
    ``frames``, the stack that allocated it if :func:`record_memory_history` was on. Sizes are
    bytes.

    Args:
        mempool_id: the id of a ``MemPool`` or of a graph's pool; None for all.
        include_traces: whether blocks include their ``frames``, which are slow to format.
    """
    frames = {}
    if include_traces:
        frames = {block["address"]: block["frames"] for block in _C.memory_live_blocks()}
    segments = []
    for index in range(_C.device_count()):
        segments += _C.memory_segments(index, mempool_id or _ALL_POOLS)
    for segment in segments:
        segment |= {"stream": 0, "is_expandable": False, "frames": []}
        for block in segment["blocks"]:
            block["frames"] = frames.get(block["address"], [])
    return segments


def _record_memory_history(
    enabled: str | bool | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Records allocations and frees for :func:`_snapshot`, as torch.cuda.memory's function does.

    Args:
        enabled: ``"all"`` records a history and the stacks of memory in use, ``"state"`` only the
            stacks; None stops.
        context: ignored; allocations always have their stack, frees never.
        stacks: ignored; stacks are Python's.
        max_entries: maximum number of actions in the history; older ones are dropped.
        device: ignored; all devices are recorded.
        clear_history: discard earlier records.
        compile_context: ignored.
        global_record_annotations: ignored.
        skip_actions: must be empty; filter actions when reading the snapshot.

    Raises:
        InputError: ``enabled`` has another value, or an action is to be skipped (code
            ``memory-history``).
    """
    if enabled not in (None, False, True, "state", "all") or skip_actions:
        raise InputError(
            'torch.npu.memory._record_memory_history: `enabled` must be None, "state" or "all", '
            f"and skip_actions empty, got {enabled!r} and {skip_actions!r}. Filter actions when "
            "you read the snapshot.",
            code="memory-history",
        )
    if clear_history:
        _C.set_memory_recording(False)
    _C.set_memory_history(min(max_entries, _NO_LIMIT) if enabled in ("all", True) else 0)
    _C.set_memory_recording(bool(enabled))


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Segments, and the history of each device, in the shape of ``torch.cuda.memory._snapshot``."""
    snapshot: dict[str, Any] = {
        "segments": [_tiled(segment) for segment in memory_snapshot()],
        "device_traces": [_C.memory_history(index) for index in range(_C.device_count())],
        "allocator_settings": {},
        "external_annotations": [],
    }
    if augment_with_fx_traces:
        from torch._utils import _augment_memory_snapshot_stack_traces

        snapshot = _augment_memory_snapshot_stack_traces(snapshot)  # type: ignore[arg-type, assignment]
    return snapshot


def _tiled(segment: dict[str, Any]) -> dict[str, Any]:
    """Returns the segment with contiguous blocks, for torch's viewer: headers are inactive."""
    blocks: list[dict[str, Any]] = []
    at = segment["address"]

    def fill_up_to(address: int) -> None:
        if address > at:
            blocks.append(
                {
                    "address": at,
                    "size": address - at,
                    "requested_size": 0,
                    "state": "inactive",
                    "frames": [],
                }
            )

    for block in segment["blocks"]:
        fill_up_to(block["address"])
        blocks.append(block)
        at = block["address"] + block["size"]
    fill_up_to(segment["address"] + segment["total_size"])
    return segment | {"blocks": blocks}


def _dump_snapshot(
    filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Writes :func:`_snapshot` to a file that pytorch.org/memory_viz opens."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with Path(filename).open("wb") as file:
        pickle.dump(snapshot, file)


PoolId = tuple[int, int]

# Memory of caching_allocator_alloc, by address.
_raw: dict[int, torch.UntypedStorage] = {}


class MemPool:
    """A separate memory pool; other allocations do not use its segments.

    Allocate in it with :func:`use_mem_pool`. Its memory returns to the system after the pool and
    its last tensor are freed.

    Args:
        allocator: must be None: memory comes from the device's driver.
        use_on_oom: whether other allocations may use free blocks here instead of running out of
            memory.
        no_split: ignored; blocks are never split.

    Raises:
        InputError: ``allocator`` is given (code ``memory-pool``).
    """

    def __init__(
        self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        if allocator is not None:
            raise InputError(
                f"torch.npu.MemPool: `allocator` must be None, got {allocator!r}. Device memory "
                "comes from the driver (include/npu/driver.h); write a driver.",
                code="memory-pool",
            )
        self.allocator = None
        self._id = _C.new_memory_pool_id()
        self._device = _C.current_device()
        _C.retain_memory_pool(self._device, self._id, use_on_oom)
        weakref.finalize(self, _C.release_memory_pool, self._device, self._id)

    @property
    def id(self) -> PoolId:
        """The pool's unique id."""
        return self._id

    def use_count(self) -> int:
        """Returns the number of references: this object, open contexts, captured graphs."""
        return _C.memory_pool_users(self._device, self._id)

    @public_call
    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Returns the pool's segments in the format of ``torch.npu.memory_snapshot``."""
        return memory_snapshot(self._id, include_traces)


@contextlib.contextmanager
@public_call
def use_mem_pool(pool: MemPool, device: DeviceLike = None) -> Iterator[None]:
    """Makes this thread allocate from a pool inside ``with``.

    Other threads, including those of a backward pass, are unaffected.
    """
    index = device_index(device)
    _C.begin_allocate_to_pool(index, pool.id)
    try:
        yield
    finally:
        _C.end_allocate_to_pool(index, pool.id)


@public_call
def caching_allocator_alloc(
    size: int, device: DeviceLike = None, stream: torch.Stream | int | None = None
) -> int:
    """Allocates device memory for code outside torch.

    Args:
        size: bytes.
        device: the device; the current one by default.
        stream: the stream that will use the memory first, or its native handle.

    Returns:
        The address; 0 for no bytes. Free it with :func:`caching_allocator_delete`.

    Raises:
        InputError: ``size`` is negative (code ``memory-size``).
    """
    if size < 0:
        raise InputError(
            f"torch.npu.caching_allocator_alloc: `size` must be a number of bytes, got {size}. "
            "Pass 0 or more.",
            code="memory-size",
        )
    if not isinstance(stream, torch.Stream | int | None):
        raise TypeError(
            "torch.npu.caching_allocator_alloc: `stream` must be a torch.npu.Stream or the "
            f"native handle of one, got {type(stream).__name__}. Omit it for the current one."
        )
    index = device_index(device)
    if isinstance(stream, int):
        stream = _C.find_stream(index, stream)
    with on_device(index):
        memory = torch.empty(size, dtype=torch.uint8, device="npu")
    if stream is not None:
        memory.record_stream(stream)
    if size:
        _raw[memory.data_ptr()] = memory.untyped_storage()
    return memory.data_ptr()


@public_call
def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees memory of :func:`caching_allocator_alloc`; 0 is allowed.

    Raises:
        InputError: the address is not from that function, or was already freed (code
            ``not-device-memory``).
    """
    if mem_ptr == 0:
        return
    if _raw.pop(mem_ptr, None) is None:
        raise InputError(
            "torch.npu.caching_allocator_delete: the address must come from "
            f"caching_allocator_alloc and be deleted once, got {mem_ptr:#x}. "
            "Tensors free their memory themselves.",
            code="not-device-memory",
        )


@public_call
def caching_allocator_enable(value: bool = True) -> None:
    """Turns the cache of freed memory on (the default) or off.

    While off, freed memory returns to the system immediately.
    """
    _C.set_memory_caching(value)
    if not value and _C.is_open():
        _C.empty_cache()


@contextlib.contextmanager
def caching_allocator_disabled() -> Iterator[None]:
    """Turns the cache of freed memory off inside ``with``."""
    before = _C.is_memory_caching()
    caching_allocator_enable(False)
    try:
        yield
    finally:
        caching_allocator_enable(before)


def get_allocator_backend() -> str:
    """``"native"``: the pool is the runtime's own, over memory from the driver."""
    return "native"
