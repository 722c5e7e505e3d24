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

    Where the body raises, or the draft cannot take that place, the draft is removed.

    Args:
        path: of the file; its folder is there, and the draft lies in it.

    Raises:
        OSError: the draft cannot take the file's place.
    """
    draft = path.parent / f".{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        yield draft
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) in one step; see draft_of.

    Raises:
        OSError: the folder cannot be written.
    """
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Writes a JSON file in one step; see draft_of.

    Args:
        path: of the file.
        value: what JSON can hold.
        indent: as json.dump's.

    Raises:
        OSError: the folder cannot be written.
        TypeError: JSON cannot hold the value; nothing is written.
        ValueError: the same, of a value that holds itself.
    """
    write_text(path, json.dumps(value, indent=indent))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other threads and processes that ask for the same lock out while the body runs.

    Args:
        path: of the file that is changed; its folder is made. The lock is a file beside it.

    Raises:
        OSError: the folder cannot be made or written.
    """
    # Importing filelock takes 50 ms, and most processes write no shared file.
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        yield
