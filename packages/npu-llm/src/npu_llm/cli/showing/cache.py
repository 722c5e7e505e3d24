"""The command `npu-llm cache`: lists or removes entries of the compile cache."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from npu_command.caches import KeptEntry, act, add_actions
from npu_command.command_parser import CommandParser
from npu_llm.cli.arguments import add_cache_dir
from npu_llm.config import read_settings

__all__ = ["MANIFEST", "main", "read_about"]

MANIFEST = "entry.json"  # as in npu_llm.models.entry, which imports torch
_COMPILED = "blob.json"


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments, and lists or removes entries; returns the exit code."""
    parser = CommandParser(
        prog="npu-llm cache",
        description="Lists the models in the compile cache by model, precision, size and last use, "
        "or removes some. The next start of a removed model builds it again.",
    )
    add_cache_dir(parser)
    add_actions(parser)
    options = parser.parse_args(arguments)
    root = options.cache_dir or read_settings().cache_dir
    if root.is_file():
        parser.error(f"`--cache-dir` must be a folder, got the file {root}")
    return act(options, list(_entries(root)), root)


def _entries(root: Path) -> Iterator[KeptEntry]:
    folders = [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    for folder in sorted(folders):
        about = None if folder.name.startswith(".") else read_about(folder)
        if about is None:
            continue
        files = [path.stat() for path in folder.rglob("*") if path.is_file()]
        yield KeptEntry(
            folder,
            name=about.get("name", folder.name.rsplit("-", 1)[0]),
            details=(about.get("precision", "-"), about.get("pipeline", "-")),
            size_bytes=sum(file.st_size for file in files),
            used=folder.stat().st_mtime,
        )


def read_about(folder: Path) -> dict[str, str] | None:
    """Returns the facts of an entry, or of the compiled form of a model in another folder.

    Returns:
        None for a folder that does not belong to the cache.
    """
    try:
        about = json.loads((folder / MANIFEST).read_text())["about"]
    except FileNotFoundError:
        return {"precision": "compiled form"} if (folder / _COMPILED).is_file() else None
    except (OSError, ValueError, KeyError, TypeError):
        return {"precision": "damaged"}
    if not isinstance(about, dict):
        return {"precision": "damaged"}
    return {name: value for name, value in about.items() if isinstance(value, str)}
