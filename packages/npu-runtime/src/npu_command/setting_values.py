"""Reads settings and cache folders from the environment, for the `config` module of each package.

An invalid value is an error that names the variable. Settings can be read without torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["cache_directory", "read_file", "read_flag", "read_folder", "read_number"]

# Called with the text and the code.
ErrorClass = Callable[..., Exception]

_ON = ("1", "true", "yes", "on")
_OFF = ("", "0", "false", "no", "off")


def read_flag(values: Mapping[str, str], name: str, *, error: ErrorClass) -> bool | None:
    """Reads a flag (1/true/yes/on or 0/false/no/off, case-insensitive); None if unset or empty.

    Raises [bad-setting], of the class `error`, for any other text.
    """
    text = values.get(name, "").strip().lower()
    if text in _ON:
        return True
    if text in _OFF:
        return False if text else None
    raise error(
        f"{name} must be 1 or 0 (or true, yes, on, false, no, off), got {values[name]!r}. "
        "Set one of them, or unset the variable.",
        code="bad-setting",
    )


def read_number(
    values: Mapping[str, str],
    name: str,
    default: int,
    *,
    least: int = 0,
    of: str = "",
    error: ErrorClass,
) -> int:
    """Reads an integer; `of` names the quantity in messages.

    Raises [bad-setting], of the class `error`, for a number below `least` or other text.
    """
    text = values.get(name, str(default)).strip()
    # int would also take 1_000 and non-ASCII digits; more than 18 digits are a typo.
    if text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) >= least:
        return int(text)
    what = f"a whole number of {of}" if of else "a whole number"
    raise error(
        f"{name} must be {what}, {least} or more, got {text!r}. Set one, or unset the variable.",
        code="bad-setting",
    )


def read_folder(values: Mapping[str, str], name: str, *, error: ErrorClass) -> Path | None:
    """Reads the path of a folder, which need not exist yet; `~` is the home folder.

    None if the variable is unset or empty. Raises [bad-setting] if the path, or a part of it, is
    not a folder.
    """
    path = _read_path(values, name, error)
    if path is not None:
        for part in (path, *path.parents):
            if _is_there(part, name, error) and not _is_folder(part):
                raise error(
                    f"{name} must be a folder, got {str(path)!r}, and {part} is not one. "
                    "Name a folder, or unset the variable.",
                    code="bad-setting",
                )
    return path


def read_file(values: Mapping[str, str], name: str, *, error: ErrorClass) -> Path | None:
    """Reads the path of a file to be written; its folder need not exist. `~` is the home folder.

    None if the variable is unset or empty. Raises [bad-setting] if the path is a folder, or a part
    of it is a file.
    """
    path = _read_path(values, name, error)
    if path is None:
        return None
    if _is_there(path, name, error) and _is_folder(path):
        raise error(
            f"{name} must be a file, got {str(path)!r}, which is a folder. "
            "Name a file in it, or unset the variable.",
            code="bad-setting",
        )
    read_folder({name: str(path.parent)}, name, error=error)
    return path


def cache_directory(name: str, environment: Mapping[str, str] | None = None) -> Path:
    """Returns a cache folder, which need not exist yet.

    Args:
        name: of the folder in `XDG_CACHE_HOME`, or in `~/.cache` if that is unset or relative (the
            specification ignores relative paths).
        environment: the variables; those of the process by default.
    """
    values = os.environ if environment is None else environment
    given = Path(values.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return (given if given.is_absolute() else Path("~/.cache").expanduser()) / name


def _read_path(values: Mapping[str, str], name: str, error: ErrorClass) -> Path | None:
    text = values.get(name, "").strip()
    if not text:
        return None
    try:
        return Path(text).expanduser()
    except RuntimeError as cause:  # ~user of an unknown user
        raise error(
            f"{name} must be a path, got {text!r}, whose home directory is unknown. Pass a full "
            f"path, or unset the variable.",
            code="bad-setting",
        ) from cause


def _is_there(path: Path, name: str, error: ErrorClass) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    except OSError as cause:  # an invalid name, or circular links
        raise error(
            f"{name} must be a path, got {str(path)!r}: {cause.strerror}. "
            "Name another, or unset the variable.",
            code="bad-setting",
        ) from cause
    return True


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a link into an unreadable folder
        return False
