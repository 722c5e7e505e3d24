"""Where the platform keeps files for its user, by the XDG base directory specification."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_directory"]


def cache_directory(name: str, environment: Mapping[str, str] | None = None) -> Path:
    """Returns a folder for what can be made again; it need not exist yet.

    Args:
        name: of the folder in `XDG_CACHE_HOME`, or in `~/.cache` where that is not set, or is
            relative, which the specification has ignored.
        environment: the variables; those of the process by default.
    """
    values = os.environ if environment is None else environment
    given = Path(values.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return (given if given.is_absolute() else Path("~/.cache").expanduser()) / name
