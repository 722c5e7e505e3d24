"""Output files named by users: checked before the work."""

import os
import tempfile
from pathlib import Path

from npu_profiler.errors import TraceError

__all__ = ["check_writable", "unwritable", "write_bytes"]


def check_writable(name: str | Path, what: str) -> Path:
    """Returns the path of a writable file; call it before the work.

    Raises [output-unwritable] if its directory is missing or read-only, or the path is a directory.
    """
    path = Path(name)
    if os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises for a name too long
        raise TraceError(
            f"`{what}` must be a file, got the directory {path}. Name a file in it.",
            code="output-unwritable",
        )
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        reason = getattr(error, "strerror", None) or error
        raise TraceError(
            f"{what}: its directory must exist and be writable, got {str(path)!a} ({reason}). "
            "Name another.",
            code="output-unwritable",
        ) from None
    return path


def write_bytes(path: Path, content: bytes, what: str) -> None:
    """Writes a file; raises [output-unwritable] on failure."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise unwritable(path, what, error) from None


def unwritable(path: Path, what: str, error: OSError) -> TraceError:
    """Returns the error of a failed write."""
    return TraceError(
        f"`{what}` must be a writable path, got {path} ({error.strerror or error}). Name another.",
        code="output-unwritable",
    )
