"""Records of graphs on disk: one JSON file each, bounded in number."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_command.whole_files import write_json
from npu_compiler.config import read_settings

__all__ = ["GraphStore"]

_logger = logging.getLogger(__name__)

_MOST = 2000


class GraphStore:
    """The records in a directory; many processes may share it."""

    def __init__(
        self, cache_dir: str | os.PathLike[str] | None = None, *, most: int = _MOST
    ) -> None:
        """Names the directory: `graphs` in the one for caches (NPU_COMPILE_CACHE_DIR).

        Args:
            cache_dir: the one for caches.
            most: when there are more records, the older half goes.
        """
        self.directory = Path(cache_dir or read_settings().cache_dir) / "graphs"
        self._most = most

    def read(self, key: str) -> dict[str, Any] | None:
        """Returns the record of a key, or None; a damaged one counts as none, with a log line."""
        path = self.directory / f"{key}.json"
        try:
            content = json.loads(path.read_text())
            record = content["record"]
            if not isinstance(record, dict) or content["sha256"] != _checksum(record):
                raise ValueError("it is not what was written")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as failure:
            _logger.warning("graph store: record %s cannot be used (%s)", path, failure)
            return None
        return record

    def write(self, key: str, record: Mapping[str, Any]) -> None:
        """Keeps a record; a directory that cannot be written costs a log line.

        Args:
            key: of the graph.
            record: JSON-like.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            content = {"sha256": _checksum(record), "record": dict(record)}
            write_json(self.directory / f"{key}.json", content)
            self._trim()
        except OSError as failure:
            _logger.warning("graph store: cannot write in %s (%s)", self.directory, failure)

    def clear(self) -> None:
        """Removes all records."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _trim(self) -> None:
        files = [*self.directory.glob("*")]
        if len(files) > self._most:
            files.sort(key=_age)
            for path in files[: len(files) - self._most // 2]:
                path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # another process removes it


def _checksum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
