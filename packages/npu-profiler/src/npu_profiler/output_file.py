"""Files that users name for what is made: asked before the work whether they can be written."""

import os
import tempfile
from pathlib import Path

from npu_profiler.errors import TraceError

__all__ = ["check_writable", "unwritable", "write_bytes"]


def check_writable(name: str | Path, what: str) -> Path:
    """Returns the path of a file that can be written; asked before the work whose result it takes.

    Raises [output-unwritable] if the directory is not there or takes no file, or it is itself one.
    """
    path = Path(name)
    if os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises for a name too long
        raise TraceError(
            f"{what}: must be a file; got the directory {path}. Name a file in it.",
            code="output-unwritable",
        )
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise TraceError(
            f"{what}: its directory must be there and writable; got {str(path)!a} ({reason}). "
            "Name another.",
            code="output-unwritable",
        ) from None
    return path


def write_bytes(path: Path, content: bytes, what: str) -> None:
    """Writes a whole file; [output-unwritable] if that fails."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise unwritable(path, what, error) from None


def unwritable(path: Path, what: str, error: OSError) -> TraceError:
    """What to raise where writing failed."""
    return TraceError(
        f"{what}: must be a place that can be written; got {path} ({error.strerror or error}). "
        "Name another.",
        code="output-unwritable",
    )
