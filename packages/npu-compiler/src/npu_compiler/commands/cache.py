"""`npu-compiler cache`: lists the programs that are kept on disk, or removes them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Prints the entries, or clears them; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="npu-compiler cache", description="List the kept programs, or remove them."
    )
    parser.add_argument("--clear", action="store_true", help="remove all of them")
    given = parser.parse_args(arguments)
    from npu_compiler.programs import ProgramCache  # torch: help needs none
    from npu_compiler.torch_compile.recall import GraphStore

    cache = ProgramCache()
    entries = cache.entries()
    for entry in sorted(entries, key=lambda entry: -entry.used):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        print(f"{entry.key}  {entry.size_bytes / 1e6:10.1f} MB  used {when}")
    total = sum(entry.size_bytes for entry in entries)
    print(
        f"{len(entries)} programs, {total / 1e6:.1f} of {cache.max_bytes / 1e6:.0f} MB in "
        f"{cache.directory}"
    )
    if given.clear:
        cache.clear()
        GraphStore().clear()
        print("removed")
    return 0
