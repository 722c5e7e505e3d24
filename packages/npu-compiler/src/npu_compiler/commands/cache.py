"""`npu-compiler cache`: lists the programs that are kept on disk, or removes them."""

from __future__ import annotations

from collections.abc import Sequence

from npu_command.caches import KeptEntry, act, add_actions
from npu_command.command_parser import CommandParser

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Lists the entries, or removes some; returns the exit code."""
    parser = CommandParser(
        prog="npu-compiler cache",
        description="List cached programs with model, graph, size and last use, or remove them. "
        "Removed programs are compiled again when needed.",
    )
    parser.add_argument(
        "--clear", action="store_true", help="remove all programs and their records"
    )
    add_actions(parser)
    options = parser.parse_args(arguments)
    from npu_compiler.programs import ProgramCache  # imports torch, which help does not need
    from npu_compiler.torch_compile.graph_cache import GraphStore

    cache = ProgramCache()
    entries = [
        KeptEntry(cache.directory / one.key, one.name, (), one.size_bytes, one.used)
        for one in cache.entries()
    ]
    code = act(options, entries, cache.directory)
    if options.clear:
        cache.clear()
        GraphStore().clear()
        print("removed")
    return code
