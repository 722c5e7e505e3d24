"""Atomic file writes: a reader sees the old content or the new, never part of it.

Also a lock for reading, changing and rewriting a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["draft_of", "locked", "write_json", "write_text"]


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Yields the path of a draft, which replaces the file after the body.

    The draft is in the file's folder. It is removed if the body raises or the replacement fails
    (OSError).
    """
    draft = path.parent / f".{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        yield draft
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) atomically; raises OSError on failure. See draft_of."""
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Writes a JSON file atomically; see draft_of.

    Raises:
        OSError: the folder cannot be written.
        TypeError: JSON cannot hold the value; nothing is written.
        ValueError: the value contains itself; nothing is written.
    """
    write_text(path, json.dumps(value, indent=indent))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock during the body.

    Creates the file's folder and a lock file next to it. Raises OSError if it cannot.
    """
    # Importing filelock takes 50 ms, and most processes write no shared file.
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        yield
