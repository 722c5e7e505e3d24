"""Files on disk under keys, bounded in size: programs, kernels, and reports of NPUs' compilers.

An entry is a directory `<key>` with its files, and entry.json with their sizes and checksums. It
appears by an atomic rename, so that readers never see a partial entry. Does not import torch.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npu_command.whole_files import write_json
from npu_compiler.config import read_settings
from npu_compiler.programs.blobs import fingerprint
from npu_runtime.public_calls import public_call

__all__ = ["FORMAT", "CacheEntry", "CacheStatistics", "KeptFiles", "damage_of", "facts_of", "touch"]

_logger = logging.getLogger(__name__)

FORMAT = 2
_STALE_S = 3600.0
_ENTRY = "entry.json"


@dataclass(frozen=True)
class CacheStatistics:
    """Counters of a cache object: entries found, built, and rebuilt because they were damaged."""

    hits: int = 0
    misses: int = 0
    rebuilt: int = 0
    evicted: int = 0


@dataclass(frozen=True)
class CacheEntry:
    """An entry of the cache: its folder, name, size in bytes and last use in seconds since 1970."""

    key: str
    name: str
    size_bytes: int
    used: float


class KeptFiles:
    """Files in a directory, bounded in size; many threads and processes may share it."""

    @public_call
    def __init__(
        self, cache_dir: str | os.PathLike[str] | None = None, *, max_bytes: int | None = None
    ) -> None:
        """Sets the directory, which is created with the first entry.

        Args:
            cache_dir: default from the settings (NPU_COMPILE_CACHE_DIR), in it `programs`.
            max_bytes: the least recently used entries are evicted above this total.
        """
        settings = read_settings()
        self.directory = Path(cache_dir or settings.cache_dir) / "programs"
        self.max_bytes = settings.cache_size_bytes if max_bytes is None else max_bytes
        self._statistics = CacheStatistics()
        self._lock = threading.Lock()

    @property
    def statistics(self) -> CacheStatistics:
        """The counters of this object."""
        return self._statistics

    @public_call
    def find_files(self, key: str) -> tuple[Path, dict[str, Any]] | None:
        """Returns the directory of an undamaged entry, with its facts, or None."""
        entry = self.directory / key
        if damage_of(entry) is not None:
            return None
        self._count(hits=1)
        touch(entry)
        return entry, facts_of(entry)

    @public_call
    def store_files(
        self, key: str, write: Callable[[Path], None], *, name: str, facts: dict[str, Any]
    ) -> None:
        """Writes files under a key; logs a warning if the directory cannot be written.

        `name` appears in listings; JSON-like facts are stored with the files.
        """
        entry = self.directory / key
        if damage_of(entry) is None:
            return
        shutil.rmtree(entry, ignore_errors=True)
        try:
            self._store(entry, write, facts, name, {})
        except OSError as failure:
            _logger.warning(
                "program cache: cannot store %s in %s (%s)", key, self.directory, failure
            )
            return
        self._evict(keep=key)

    def _store(
        self,
        entry: Path,
        write: Callable[[Path], None],
        facts: dict[str, Any],
        name: str,
        changing: Mapping[str, Mapping[str, str]],
    ) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sweep()
        place = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=self.directory))
        try:
            write(place)
            files = {path.name: fingerprint(path) for path in sorted(place.iterdir())}
            record = {
                "format": FORMAT,
                "name": name,
                "created": time.time(),
                "files": files,
                "facts": facts,
            }
            for file_name, content in changing.items():
                write_json(place / file_name, content)
            write_json(place / _ENTRY, record)
            try:
                place.rename(entry)
            except OSError:
                # Another process was faster; its entry is equivalent.
                if not entry.exists():
                    raise
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _sweep(self) -> None:
        """Removes leftovers of killed writers."""
        for path in self.directory.glob(".*"):
            try:
                is_old = time.time() - path.stat().st_mtime > _STALE_S
            except OSError:
                continue
            if is_old:
                shutil.rmtree(path, ignore_errors=True)

    def entries(self) -> tuple[CacheEntry, ...]:
        """Returns all entries."""
        return tuple(
            CacheEntry(path.name, _kept_name(path), size_bytes, used)
            for path, size_bytes, used in self._kept()
        )

    def _kept(self) -> Iterator[tuple[Path, int, float]]:
        """Yields the folder of each entry, the size of its files, and when it was last used."""
        for path in self.directory.iterdir() if self.directory.is_dir() else ():
            if path.name.startswith(".") or not path.is_dir():
                continue
            try:
                size = sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
                used = (path / _ENTRY).stat().st_mtime
            except OSError:
                continue  # another process is removing or writing it
            yield path, size, used

    def clear(self) -> None:
        """Removes all entries; running programs keep their mapped files."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _evict(self, *, keep: str) -> None:
        kept = list(self._kept())
        total = sum(size_bytes for _, size_bytes, _ in kept)
        for path, size_bytes, _ in sorted(kept, key=lambda one: one[2]):
            if total <= self.max_bytes:
                return
            if path.name != keep:
                shutil.rmtree(path, ignore_errors=True)
                total -= size_bytes
                self._count(evicted=1)

    def _count(self, **more: int) -> None:
        with self._lock:
            now = self._statistics
            sums = {name: getattr(now, name) + count for name, count in more.items()}
            self._statistics = replace(now, **sums)


def _kept_name(path: Path) -> str:
    """Returns a program's name at its creation."""
    try:
        return str(json.loads((path / _ENTRY).read_text()).get("name", "unnamed"))
    except (OSError, ValueError, AttributeError):
        return "damaged"


def facts_of(entry: Path) -> dict[str, Any]:
    """Returns the facts of an undamaged entry."""
    facts = json.loads((entry / _ENTRY).read_text())["facts"]
    return dict(facts)


def damage_of(entry: Path, *, needs: str | None = None) -> str | None:
    """Returns why an entry cannot be used; None if it is intact and has the needed file."""
    try:
        record = json.loads((entry / _ENTRY).read_text())
        expected = record["files"]
        is_complete = isinstance(record.get("facts"), dict) and needs in (None, *expected)
        if record["format"] != FORMAT or not is_complete:
            return "another format"
        for file_name, written in expected.items():
            if fingerprint(entry / file_name) != written:
                return f"{file_name} does not match its checksum"
    except FileNotFoundError as missing:
        return f"{Path(str(missing.filename)).name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as failure:
        return f"entry.json cannot be read: {failure}"
    return None


def touch(entry: Path) -> None:
    """Marks an entry as used now."""
    try:
        os.utime(entry / _ENTRY)
    except OSError as failure:
        _logger.debug("program cache: cannot touch %s (%s)", entry, failure)
