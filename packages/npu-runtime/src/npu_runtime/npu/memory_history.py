"""Snapshots of ``torch.npu``'s memory: what lies where, who allocated it, and what happened before.

The shape is torch's own, so that the viewer at pytorch.org/memory_viz reads it. The record is
native (csrc/memory/trace.cpp).
"""

import pickle
import sys
from pathlib import Path
from typing import Any

from npu_runtime import _C
from npu_runtime.errors import InputError
from npu_runtime.npu.device import DeviceLike
from npu_runtime.public_calls import public_call

__all__ = ["memory_snapshot", "record_memory_history"]

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
    ``frames``, the stack that allocated it where :func:`record_memory_history` was on. Sizes are
    bytes.

    Args:
        mempool_id: the id of a ``MemPool`` or of a graph's pool; None for all.
        include_traces: whether blocks have their ``frames``, which take time to spell out.
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
        enabled: ``"all"`` keeps a history of what happened and the stacks of what is in use,
            ``"state"`` the stacks alone; None stops.
        context: taken for compatibility: allocations always have their stack, frees never.
        stacks: taken for compatibility: stacks are Python's.
        max_entries: how many actions the history keeps; older ones go.
        device: taken for compatibility: all devices are recorded.
        clear_history: forget what was recorded before.
        compile_context: taken for compatibility.
        global_record_annotations: taken for compatibility.
        skip_actions: must be empty: actions are left out when the snapshot is read.

    Raises:
        InputError: ``enabled`` has another value, or an action is to be skipped (code
            ``memory-history``).
    """
    if enabled not in (None, False, True, "state", "all") or skip_actions:
        raise InputError(
            'torch.npu.memory._record_memory_history: enabled must be None, "state" or "all", '
            f"and skip_actions empty; got {enabled!r} and {skip_actions!r}. Leave actions out when "
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
    """The segment with blocks from end to end, as torch's viewer wants it: headers are inactive."""
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
