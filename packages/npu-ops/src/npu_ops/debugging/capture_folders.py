"""Finds folders of captured calls, without torch."""

from __future__ import annotations

from pathlib import Path

from npu_ops.errors import OperatorInputError
from npu_runtime.public_calls import public_call

__all__ = ["CALL", "find_captures"]

CALL = "call.json"  # each has one


@public_call
def find_captures(directory: str | Path) -> list[Path]:
    """Returns the capture folders in a directory, or the directory itself, in call order.

    Raises:
        OperatorInputError: [capture-unreadable] if there is none.
    """
    top = Path(directory)
    found = sorted({file.parent for file in top.rglob(CALL) if ".part" not in file.parent.suffix})
    if not found:
        raise OperatorInputError(
            f"`{top}` must hold captured calls; found none. Name the directory that npu-ops run "
            "--capture -o wrote.",
            code="capture-unreadable",
        )
    return found
