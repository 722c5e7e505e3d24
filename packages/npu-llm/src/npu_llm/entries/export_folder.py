"""Folders that an export writes: where one may be written, and one read again; without torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from npu_llm.entries.entry import MANIFEST, Entry, read_entry
from npu_llm.errors import ModelError, OptionError

__all__ = ["free_folder", "is_exported", "open_exported", "read_task"]

# What the manifest of an exported folder must contain.
_ABOUT = {"name", "precision", "context_length", "has_tokenizer", "facts", "made_with"}


def free_folder(output: str | os.PathLike[str]) -> Path:
    """Returns where to export to, as an absolute path; an empty folder there is removed.

    Raises:
        OptionError: [output-exists] for a folder or file with contents.
    """
    target = Path(output).expanduser().absolute()
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    elif target.exists():
        raise OptionError(
            f"{target}: must be empty or not exist, to be exported to; got a folder or file with "
            "contents. Remove it, or name another.",
            code="output-exists",
        )
    return target


def is_exported(path: Path) -> bool:
    """Whether a path is a folder that `export` wrote."""
    return (path / MANIFEST).is_file()


def open_exported(folder: Path) -> Entry:
    """Reads an exported folder and checks that it is complete.

    Raises:
        ModelError: [exported-damaged] if it is not as `export` wrote it, [cache-entry] for an entry
            of the compile cache.
    """
    try:
        entry = read_entry(folder.absolute())
        missing = sorted(_ABOUT - set(entry.about))
        if "made_with" in missing and "source" in entry.about:
            raise ModelError(
                f"{folder}: must be a model's own files or what npu_llm.export wrote; got an entry "
                f"of the compile cache. Pass {entry.about['source']}, which it was made of.",
                code="cache-entry",
            )
        if missing:
            raise ValueError(f"{MANIFEST} lacks {missing[0]}")
        _ = entry.blobs  # raises for other records
    except (ValueError, TypeError) as problem:
        raise ModelError(
            f"{folder}: must be as npu_llm.export wrote it; got: {problem}. Copy it again, or "
            "export the model again.",
            code="exported-damaged",
        ) from problem
    return entry


def read_task(path: Path, auto: Any) -> Entry:
    """Reads an exported folder of a model of a task.

    Args:
        path: the folder.
        auto: transformers' class for models of the task.

    Raises:
        ModelError: [exported-damaged], or [model-task] for a model of another task.
    """
    try:
        entry = read_entry(path.absolute())
    except ValueError as problem:
        raise ModelError(
            f"{path}: must be as export wrote it; got: {problem}. Copy it again, or export the "
            "model again.",
            code="exported-damaged",
        ) from problem
    task = entry.about.get("task")
    if task != auto.__name__:
        wanted = auto.__name__.removeprefix("AutoModelFor")
        got = "a language model" if task is None else str(task).removeprefix("AutoModelFor")
        raise ModelError(
            f"{path}: must be exported for {wanted}; got {got}. Load it with the class that "
            "exported it.",
            code="model-task",
        )
    return entry
