"""Folders of captured calls, found without torch."""

from __future__ import annotations

from pathlib import Path

from npu_ops.errors import OperatorInputError
from npu_runtime.public_calls import public_call

__all__ = ["CALL", "find_captures"]

CALL = "call.json"  # each has one


@public_call
def find_captures(directory: str | Path) -> list[Path]:
    """The folders of captured calls in a directory, or the directory itself, in order of calls.

    Raises:
        OperatorInputError: [capture-unreadable] when there is no capture.
    """
    top = Path(directory)
    found = sorted({file.parent for file in top.rglob(CALL) if ".part" not in file.parent.suffix})
    if not found:
        raise OperatorInputError(
            f"{top}: must hold captured calls; found none. Name the directory that npu-ops run "
            "--capture -o wrote.",
            code="capture-unreadable",
        )
    return found
