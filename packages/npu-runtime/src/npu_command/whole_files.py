"""Files that appear whole: a reader sees the former content or the new one, never half of it.

And a lock, for those who read a file, change it and write it back.
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
    """Gives the path of a draft, which takes the file's place when the body has ended.

    The draft is in the file's folder. Where the body raises, or the draft cannot take that place
    (OSError), it is removed.
    """
    draft = path.parent / f".{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        yield draft
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) in one step; OSError if it cannot. See draft_of."""
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Writes a JSON file in one step; see draft_of.

    Raises:
        OSError: the folder cannot be written.
        TypeError: JSON cannot hold the value; nothing is written.
        ValueError: the same, of a value that holds itself.
    """
    write_text(path, json.dumps(value, indent=indent))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps others that ask for the same lock out while the body runs.

    The folder of the file is made; the lock is a file next to it. Raises OSError if they cannot be.
    """
    # Importing filelock takes 50 ms, and most processes write no shared file.
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        yield
