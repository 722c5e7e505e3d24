"""Host memory: how much is available, and how much this process uses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "available_bytes",
    "process_memory_bytes",
    "resident_bytes",
    "return_memory",
]

# Files with limit and usage, and the line of memory.stat for pages that can be dropped.
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def available_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that a process can still allocate, by system and control group limits.

    Args:
        root: the folder of /proc and /sys; replaced in tests.

    Returns:
        The minimum of MemAvailable (see proc(5)), the rest of the address space limit (`ulimit -v`)
        and, for each of its groups, limit minus usage. Inactive file pages count as free.
    """
    bounds = [_meminfo(root), _address_space(root)]
    for folder, names in _groups(root):
        limit, usage = (_read_number(folder / name) for name in names[:2])
        if limit is None or usage is None:
            continue
        reclaimable = _statistic(folder / "memory.stat", names[2])
        bounds.append(max(limit - usage + reclaimable, 0))
    return min(bounds)


def return_memory() -> None:
    """Makes the C library return freed memory to the system instead of keeping it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> tuple[int, int]:
    """Returns this process's resident memory, and its anonymous part."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    page = os.sysconf("SC_PAGE_SIZE")
    return resident * page, (resident - shared) * page


def process_memory_bytes() -> tuple[int, int]:
    """Returns this process's peak memory (VmHWM) and its anonymous memory now (RssAnon)."""
    found = {"VmHWM": 0, "RssAnon": 0}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) * 1024
    return found["VmHWM"], found["RssAnon"]


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yields the process's group and its ancestors, in each memory hierarchy."""
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            top, names = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        # In a container the path is the host's, and the group's files are at the top.
        folder = top / path.lstrip("/")
        while True:
            if folder.is_dir():
                yield folder, names
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent


def _meminfo(root: Path) -> int:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 1 << 62


def _address_space(root: Path) -> int:
    found = {}
    for name, file in (("Max address space", "limits"), ("VmSize:", "status")):
        for line in _lines(root / "proc/self" / file):
            if line.startswith(name):
                found[name] = line.removeprefix(name).split()[0]
    limit, size = found.get("Max address space", ""), found.get("VmSize:", "")
    if not (limit.isdigit() and size.isdigit()):
        return 1 << 62
    return max(int(limit) - int(size) * 1024, 0)


def _statistic(path: Path, name: str) -> int:
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read_number(path: Path) -> int | None:
    """Returns the number in a file; None for "max" or without a number."""
    text = "".join(_lines(path)[:1]).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
