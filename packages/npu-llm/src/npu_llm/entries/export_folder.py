"""Folders that an export writes: where one may be written, and one of a task read again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from npu_llm.entries.entry import Entry, read_entry
from npu_llm.errors import ModelError, OptionError

__all__ = ["free_folder", "read_task"]


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
