"""Pools of ``torch.npu``'s memory that people make, allocations without a tensor, and the cache.

The pools themselves are native: csrc/memory/pool.cpp and csrc/memory/region.cpp.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from npu_runtime import _C
from npu_runtime.errors import InputError
from npu_runtime.npu.device import DeviceLike, device_index
from npu_runtime.npu.device import device as on_device
from npu_runtime.npu.memory_history import memory_snapshot
from npu_runtime.public_calls import public_call

__all__ = [
    "MemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "get_allocator_backend",
    "use_mem_pool",
]

PoolId = tuple[int, int]

# What caching_allocator_alloc handed out, by address.
_raw: dict[int, torch.UntypedStorage] = {}


class MemPool:
    """A pool of memory of its own: segments that serve no other allocation.

    Allocate in it with :func:`use_mem_pool`. Its memory goes back to the system when the pool and
    the last tensor in it are gone.

    Args:
        allocator: must be None: memory comes from the device's driver.
        use_on_oom: whether free blocks here may serve an allocation elsewhere that would be out of
            memory.
        no_split: taken for compatibility: blocks are never split.

    Raises:
        InputError: ``allocator`` is given (code ``memory-pool``).
    """

    def __init__(
        self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        if allocator is not None:
            raise InputError(
                f"torch.npu.MemPool: allocator must be None; got {allocator!r}. Device memory "
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
        """The pool's id, unlike any other's."""
        return self._id

    def use_count(self) -> int:
        """How many hold the pool: this object, contexts that are open, captured graphs."""
        return _C.memory_pool_users(self._device, self._id)

    @public_call
    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """The pool's segments, as ``torch.npu.memory_snapshot`` gives them."""
        return memory_snapshot(self._id, include_traces)


@contextlib.contextmanager
@public_call
def use_mem_pool(pool: MemPool, device: DeviceLike = None) -> Iterator[None]:
    """Takes what this thread allocates inside ``with`` from a pool.

    Other threads, and so a backward pass, allocate as before.
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
        The address; 0 for no bytes. Give it back with :func:`caching_allocator_delete`.

    Raises:
        InputError: ``size`` is negative (code ``memory-size``).
    """
    if size < 0:
        raise InputError(
            f"torch.npu.caching_allocator_alloc: size is a number of bytes; got {size}. "
            "Pass 0 or more.",
            code="memory-size",
        )
    if not isinstance(stream, torch.Stream | int | None):
        raise TypeError(
            "torch.npu.caching_allocator_alloc: stream must be a torch.npu.Stream or the "
            f"native handle of one; got {type(stream).__name__}. Leave it out for the current one."
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
    """Gives back memory of :func:`caching_allocator_alloc`; 0 is allowed.

    Raises:
        InputError: the address is not one that it returned, or was given back before (code
            ``not-device-memory``).
    """
    if mem_ptr == 0:
        return
    if _raw.pop(mem_ptr, None) is None:
        raise InputError(
            "torch.npu.caching_allocator_delete: the address must come from "
            f"caching_allocator_alloc and be deleted once; got {mem_ptr:#x}. "
            "Tensors free their memory themselves.",
            code="not-device-memory",
        )


@public_call
def caching_allocator_enable(value: bool = True) -> None:
    """Switches the cache of freed memory on or off; it is on at first.

    While it is off, what is freed goes back to the system at once.
    """
    _C.set_memory_caching(value)
    if not value and _C.is_open():
        _C.empty_cache()


@contextlib.contextmanager
def caching_allocator_disabled() -> Iterator[None]:
    """Keeps no freed memory inside ``with``."""
    before = _C.is_memory_caching()
    caching_allocator_enable(False)
    try:
        yield
    finally:
        caching_allocator_enable(before)


def get_allocator_backend() -> str:
    """``"native"``: the pool is the runtime's own, over memory from the driver."""
    return "native"
