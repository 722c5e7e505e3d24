"""JSON files that appear whole: a reader sees the former content or the new one, and no half."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["write_json"]


def write_json(path: Path, value: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Writes a file by one rename.

    Args:
        path: of the file; it lies in a directory that is there.
        value: JSON-like.
        indent: as json.dump's.

    Raises:
        OSError: the directory cannot be written.
    """
    handle, place = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w") as file:
        json.dump(value, file, indent=indent)
    Path(place).replace(path)
