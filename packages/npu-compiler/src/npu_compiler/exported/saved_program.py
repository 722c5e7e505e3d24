"""A program that torch.export.save wrote, with its own example inputs."""

from __future__ import annotations

import os
import warnings
import zipfile
from pathlib import Path

import torch
from torch.export import ExportedProgram

from npu_compiler.errors import ExportError

__all__ = ["read_saved_program"]


def read_saved_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """Returns the program of a file.

    Raises:
        ExportError: [saved-program] for another file, or a program without example inputs.
    """
    try:
        if not zipfile.is_zipfile(path):  # torch logs a traceback of its own for it
            raise ValueError(_kind(Path(path)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of its own reader
            program = torch.export.load(path)
        if program.example_inputs is None:
            raise ValueError("it has no example inputs")
    except Exception as failure:  # torch has many classes for a file that is none of its own
        reason = (str(failure).strip().splitlines() or [type(failure).__name__])[0]
        raise ExportError(
            f"{os.fspath(path)}: must be a file of torch.export.save with example inputs; got one "
            f"that cannot be read ({reason}). Save the exported program.",
            code="saved-program",
        ) from failure
    return program


def _kind(path: Path) -> str:
    """What is at a path that holds no saved program."""
    if path.is_dir():
        return "a folder, as npu_compiler.export makes it, holds none"
    return "another kind of file" if path.exists() else "there is no such file"
