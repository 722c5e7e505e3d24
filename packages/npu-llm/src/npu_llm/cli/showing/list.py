"""The command `npu-llm list`: the models on this machine."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from npu_command.caches import ago
from npu_command.command_parser import CommandParser
from npu_command.output import add_json, aligned, give_answer
from npu_llm.checkpoint.source import DEFAULT_WEIGHTS, ModelSource, find_installed_weights
from npu_llm.cli.arguments import add_cache_dir
from npu_llm.cli.showing.cache import MANIFEST, read_about
from npu_llm.config import read_settings
from npu_llm.errors import ModelError

__all__ = ["main"]

_HUB_PREFIX = "models--"  # of the folders in the hub's cache


@dataclass
class _Model:
    """A model on this machine.

    Attributes:
        name: the name or path for --model.
        path: its file or folder.
        size_bytes: size of its files.
        precisions: precisions that the compile cache holds.
        used: time of the last start in seconds since 1970; None if the cache has no entry.
    """

    name: str
    path: Path
    size_bytes: int
    precisions: set[str] = field(default_factory=set)
    used: float | None = None


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and lists the models; returns the exit code."""
    parser = CommandParser(
        prog="npu-llm list",
        description="Lists the models on this machine: the installed weights, checkpoints in the "
        "hub's cache, and models that were started before. NAME is the value for --model; READY "
        "lists the precisions that start without building.",
    )
    add_cache_dir(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    found = _find_models(options.cache_dir or read_settings().cache_dir)
    models = sorted(found, key=lambda one: (-(one.used or 0), one.name))
    give_answer(options.json, [_as_json(one) for one in models], lambda: _print(models))
    return 0


def _find_models(cache: Path) -> list[_Model]:
    found: dict[Path, _Model] = {}
    for name, path in [*_installed(), *_hub()]:
        found[path.resolve()] = _Model(name, path, _size(path))
    for path, precision, used in _started(cache):
        place = path.resolve()
        if place not in found:
            found[place] = _Model(str(path), path, _size(path))
        one = found[place]
        one.precisions.add(precision)
        one.used = max(used, one.used or 0)
    return list(found.values())


def _installed() -> Iterator[tuple[str, Path]]:
    try:
        yield DEFAULT_WEIGHTS, find_installed_weights().path
    except ModelError:
        return


def _hub() -> Iterator[tuple[str, Path]]:
    """Yields names and snapshots of the checkpoints in the hub's cache."""
    from huggingface_hub import constants

    for folder in sorted(Path(constants.HF_HUB_CACHE).glob(f"{_HUB_PREFIX}*")):
        try:
            commit = (folder / "refs" / "main").read_text().strip()
        except OSError:
            continue
        snapshot = folder / "snapshots" / commit
        if (snapshot / "config.json").is_file():
            yield folder.name.removeprefix(_HUB_PREFIX).replace("--", "/"), snapshot


def _started(cache: Path) -> Iterator[tuple[Path, str, float]]:
    """Yields source, precision and last use of the entries with a source that still exists."""
    for manifest in sorted(cache.glob(f"*/{MANIFEST}")):
        about = read_about(manifest.parent) or {}
        if not about.keys() >= {"source", "precision"}:
            continue
        source = Path(about["source"])
        with contextlib.suppress(OSError):  # another process removes the entry
            used = manifest.parent.stat().st_mtime
            if source.exists():
                yield source, about["precision"], used


def _size(path: Path) -> int:
    source = ModelSource(path) if path.is_dir() else ModelSource(path.parent, path.name)
    return sum(size for _, size, _ in source.identity())


def _as_json(one: _Model) -> dict[str, object]:
    used = None
    if one.used is not None:
        at = datetime.datetime.fromtimestamp(one.used, datetime.UTC)
        used = at.isoformat(timespec="seconds")
    return {
        "name": one.name,
        "path": str(one.path),
        "size_bytes": one.size_bytes,
        "precisions": sorted(one.precisions),
        "last_used": used,
    }


def _print(models: Sequence[_Model]) -> None:
    rows = [
        (
            one.name,
            f"{one.size_bytes / 1e6:,.0f} MB",
            ", ".join(sorted(one.precisions)) or "-",
            "never" if one.used is None else ago(one.used),
        )
        for one in models
    ]
    print("\n".join(aligned([("NAME", "SIZE", "READY", "USED"), *rows])))
