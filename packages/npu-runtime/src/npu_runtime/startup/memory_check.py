"""Memory reports: leaks at exit, and a snapshot when memory runs out.

The records are native (csrc/memory/trace.cpp); environment variables request both reports.
"""

import atexit
import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npu_runtime import _C

__all__ = ["install_memory_check", "install_oom_snapshot", "leak_report"]


def install_memory_check() -> None:
    """Records the stacks of allocations from now on, and prints :func:`leak_report` at exit."""
    _C.set_memory_recording(True)
    atexit.register(_print_leaks)


def leak_report() -> str:
    """Returns the device memory in use, by allocating Python stack, largest first.

    Empty if no memory is in use, or no allocation was recorded.
    """
    gc.collect()
    size_of: Counter[tuple[str, ...]] = Counter()
    count_of: Counter[tuple[str, ...]] = Counter()
    for block in _C.memory_live_blocks():
        stack = tuple(
            f"{frame['filename']}:{frame['line']} in {frame['name']}" for frame in block["frames"]
        )
        size_of[stack] += block["requested_size"]
        count_of[stack] += 1
    if not size_of:
        return ""
    total, blocks = sum(size_of.values()), sum(count_of.values())
    lines = [f"npu: {total:,} bytes of device memory in {blocks} blocks are still in use"]
    for stack, size_bytes in size_of.most_common():
        lines.append(f"  {size_bytes:,} bytes in {count_of[stack]} blocks, allocated at")
        lines += [f"    {frame}" for frame in stack or ("(no Python stack)",)]
    return "\n".join(lines)


def install_oom_snapshot(path: str) -> None:
    """Writes the pool's state to ``path`` as JSON when memory runs out."""
    _C.set_memory_recording(True)
    _C.set_out_of_memory_observer(_snapshot_writer(Path(path)))


def _snapshot_writer(path: Path) -> Callable[[int, int, int], None]:
    def write(device_index: int, size_bytes: int, free_bytes: int) -> None:
        snapshot: dict[str, Any] = {
            "device": device_index,
            "requested_bytes": size_bytes,
            "free_bytes": free_bytes,
            "segments": _C.memory_segments(device_index),
            "live_blocks": _C.memory_live_blocks(),
        }
        path.write_text(json.dumps(snapshot, indent=1), encoding="utf-8")
        print(f"npu: out of memory; the pool's state is in {path}", file=sys.stderr)

    return write


def _print_leaks() -> None:
    report = leak_report()
    if report:
        print(report, file=sys.stderr)
